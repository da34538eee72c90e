// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"net/textproto"
	"sync"
)

// heads writes the interim answers of one exchange. They come from goroutines of
// the way out, so they take turns here, and end for good at finish.
type heads struct {
	w       http.ResponseWriter
	http2   bool // its server asks for the body by itself
	expects bool // the app waits for 100 (RFC 9110 §10.1.1)

	mu        sync.Mutex // guards the fields below and w until finish
	done      bool
	continued bool
	began     bool // the upstream has begun to answer
}

// interim relays a 1xx answer at once.
func (h *heads) interim(code int, fields textproto.MIMEHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done || code == http.StatusContinue && (h.http2 || h.continued) {
		return nil
	}
	h.continued = h.continued || code == http.StatusContinue
	own := h.w.Header()
	for name, values := range fields {
		own[name] = values
	}
	dropHopByHop(own)
	h.w.WriteHeader(code)
	clear(own) // a 103's fields do not belong to the final answer (RFC 8297 §2)
	return nil
}

// answered is called at the first byte of the upstream's answer. If that is not
// 100, the app is not asked for a body that the upstream may just have refused:
// the way out may still read it, to keep its connection.
func (h *heads) answered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began = true
}

// askForBody sends 100 when the way out begins to read the body and the upstream
// has said nothing in time.
func (h *heads) askForBody() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.done && h.expects && !h.continued && !h.http2 && !h.began {
		h.continued = true
		h.w.WriteHeader(http.StatusContinue)
	}
}

// finish ends interim answers: the final head is next, from the handler.
func (h *heads) finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done = true
}
