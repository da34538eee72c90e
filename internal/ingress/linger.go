// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"time"
)

// An upload over HTTP/2 whose answer came early is discarded until it pauses, or for the
// total. The answer's END_STREAM waits for that, so the pause is short: apps are near.
const (
	lingerSilence = 250 * time.Millisecond
	lingerTotal   = 20 * time.Second
)

// linger takes the rest of an upload whose answer is whole, and throws it away. The
// server would send RST_STREAM with NO_ERROR instead (RFC 9113 §8.1), upon which clients
// must not discard the answer, and curl and httpx do: a 413 or 429 was a broken stream to
// them. What asks before it sends (Expect) has nothing to take.
func (e *exchange) linger() {
	r := e.r
	if r.ProtoMajor != 2 || r.Method == http.MethodConnect || r.ContentLength == 0 || e.heads.expects || e.body != nil && e.body.whole.Load() {
		return
	}
	if e.rc.Flush() != nil { // the answer first
		return
	}
	read := r.Body.Read
	if e.body != nil {
		read = e.body.rest
	}
	buf := e.s.buffers.reader()
	defer buf.release()
	end := time.Now().Add(lingerTotal)
	for now := time.Now(); now.Before(end); now = time.Now() {
		if e.rc.SetReadDeadline(now.Add(lingerSilence)) != nil {
			return
		}
		if _, err := read(buf.b); err != nil {
			return
		}
	}
}
