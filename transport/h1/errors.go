// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/warmwire/warmwire/transport/fault"
)

// asFault makes err, which ended a request before its answer, one that says what
// is proven.
func asFault(err error, sent bool) error {
	f := broken(err)
	e := *f
	if e.Sent = sent; !sent {
		e.In = "send"
	}
	return &e
}

// asCut makes err, which ended a body, one that never looks like a clean end.
func asCut(err error) *fault.Error {
	e := *broken(err)
	e.In, e.Sent = "wait", true
	if !errors.Is(e.Err, io.ErrUnexpectedEOF) {
		e.Err = fmt.Errorf("%w: %w", e.Err, io.ErrUnexpectedEOF)
	}
	return &e
}

// broken names what is wrong with the connection.
func broken(err error) *fault.Error {
	var known *fault.Error
	if errors.As(err, &known) {
		return known
	}
	f := &fault.Error{In: "wait", Kind: "upstream_closed"}
	switch {
	case errors.As(err, new(*bodyError)):
		f.In, f.Err = "send", err
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		f.Kind, f.Err = "upstream_reset", fmt.Errorf("the upstream reset the connection before it answered: %w", err)
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		f.Kind, f.Expired, f.Err = "upstream_unreachable", true, fmt.Errorf("the path to the upstream is dead: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), closedByUs(err):
		f.Err = fmt.Errorf("the upstream closed the connection before it answered: %w", io.ErrUnexpectedEOF)
	default:
		f.Err = fmt.Errorf("the connection to the upstream broke: %w", err)
	}
	return f
}
