// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"errors"
	"io"
)

// An answer tells its attempt when the first byte comes and how it ends
// ([layer.Counter], [layer.Place]).
type answer struct {
	a      *attempt
	failed bool // its status has said so
	seen   bool // a byte has come; owned by the reader
}

// Came notes bytes.
func (w *answer) Came() {
	if !w.seen {
		w.seen = true
		w.a.arrived(w.a.good)
	}
}

// Ended notes the end of what is read.
func (w *answer) Ended(err error) {
	switch {
	case w.failed:
		w.a.end(Error)
	case err == nil, errors.Is(err, io.EOF):
		w.Came() // an empty answer is an answer
		w.a.end(OK)
	case w.a.ctx.Err() != nil && !expired(context.Cause(w.a.ctx)):
		w.a.end(Left)
	case expired(err), w.a.ctx.Err() != nil:
		w.a.end(Stall)
	default:
		w.a.end(Error)
	}
}

// Refused is for an app that has left.
func (w *answer) Refused() { w.a.end(Left) }

// Closed without an end: nobody wants the rest. Of a WebSocket it is the end.
func (w *answer) Closed() {
	switch {
	case w.failed:
		w.a.end(Error)
	case w.a.socket:
		w.a.end(OK)
	case w.a.ctx.Err() != nil && expired(context.Cause(w.a.ctx)):
		w.a.end(Stall)
	default:
		w.a.end(Left)
	}
}

// Endpoint is the origin that a WebSocket is open to, as scheme://host.
func (w *answer) Endpoint() string { return w.a.e.scheme + "://" + w.a.e.host }
