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

// askForBody sends 100 when the way out begins to read the body and the upstream
// has not asked for it itself.
func (h *heads) askForBody() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.done && h.expects && !h.continued && !h.http2 {
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
