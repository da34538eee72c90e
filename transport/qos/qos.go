// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"errors"
	"net/http"

	"github.com/warmwire/warmwire/transport/layer"
)

// A Transport is a way through a gate.
type Transport struct {
	next http.RoundTripper
	gate *Gate
	tell func(*http.Request) Ticket
}

// New returns a layer around next. tell says whose a request is; nil = everybody's alike.
func New(next http.RoundTripper, gate *Gate, tell func(*http.Request) Ticket) (*Transport, error) {
	if next == nil || gate == nil {
		return nil, errors.New("qos: there is no way out, or no gate before it")
	}
	if tell == nil {
		tell = func(*http.Request) Ticket { return Ticket{Class: Default} }
	}
	return &Transport{next, gate, tell}, nil
}

// RoundTrip sends req when it is let in.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s, err := t.gate.enter(req.Context(), t.tell(req))
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	done := false
	defer func() {
		if !done { // it failed, or panics
			s.release()
		}
	}()
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	s.answered(resp)
	resp.Body = layer.Body(resp.Body, s)
	done = true
	return resp, nil
}

// Ended gives the slot back: [layer.Watcher].
func (s *slot) Ended(error) { s.release() }

// Closed gives the slot back. Of a WebSocket only this does.
func (s *slot) Closed() { s.release() }
