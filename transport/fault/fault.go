// SPDX-License-Identifier: Apache-2.0

// Package fault has the error of the way out: what the transport and its
// connections return when a request fails. It starts nothing and imports nothing
// of ours, so that every room of the transport can use it.
package fault

import (
	"errors"
	"fmt"
	"io"
)

// An Error says in which phase of a request it failed. Errors of opening a
// connection come from the dial package, with the same methods.
type Error struct {
	In      string // tls, send or wait
	Kind    string // stable code
	Limit   string // the setting that passed, if one did
	Expired bool
	Sent    bool // a byte of the request may have reached the wire
	Err     error
}

func (e *Error) Error() string {
	if e.Expired && e.Limit != "" {
		return fmt.Sprintf("%v (limit: %s)", e.Err, e.Limit)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Phase is tls, send or wait.
func (e *Error) Phase() string { return e.In }

// Code is the stable code of the failure.
func (e *Error) Code() string { return e.Kind }

// Timeout says whether a limit passed.
func (e *Error) Timeout() bool { return e.Expired }

// RequestSent says whether a byte of the request may have reached the wire.
func (e *Error) RequestSent() bool { return e.Sent }

// Unsent is the failure of a request of which nothing was written.
func Unsent(kind, format string, args ...any) *Error {
	return &Error{In: "send", Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Of returns a connection's failure as that of one of its streams: the text and the
// kind are the connection's, the proof is the stream's.
func Of(f *Error, sent bool) *Error {
	e := *f
	e.Sent, e.In = sent, "send"
	if sent {
		e.In = "wait"
	}
	return &e
}

// Cut makes f the failure of a body that has begun: never a clean end.
func Cut(f *Error) *Error {
	e := *f
	e.In, e.Sent = "wait", true
	if !errors.Is(e.Err, io.ErrUnexpectedEOF) {
		e.Err = fmt.Errorf("%w: %w", e.Err, io.ErrUnexpectedEOF)
	}
	return &e
}
