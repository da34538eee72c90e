// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"errors"
)

// A fault is what an error of the way out can tell. This package does not import the
// transport, so it finds these methods on whatever error it is given.
type fault interface {
	error
	Phase() string     // queue, dns, connect, tls, send or wait
	Code() string      // stable
	Timeout() bool     // a limit passed
	RequestSent() bool // a byte of the request may have reached the wire
}

// judge says what an error tells of an endpoint.
func judge(ctx context.Context, err error) Result {
	if ctx.Err() != nil && !expired(context.Cause(ctx)) {
		return Left
	}
	var f fault
	switch {
	case !errors.As(err, &f):
		if expired(err) {
			return Stall
		}
		return Error
	case f.Phase() == "queue": // of ours: all connections are full
		return Left
	case !f.RequestSent() && (f.Phase() == "dns" || f.Phase() == "connect" || f.Phase() == "tls"):
		return Connect
	case f.Timeout():
		return Stall
	case f.Phase() == "send" && !f.RequestSent(): // the request itself cannot be sent
		return Left
	}
	return Error
}

// expired says whether a limit has passed, of whoever waits.
func expired(err error) bool {
	var limit interface{ Timeout() bool }
	return errors.As(err, &limit) && limit.Timeout() && !errors.Is(err, context.DeadlineExceeded)
}

// elsewhere returns err such that it says that another endpoint was not tried.
func elsewhere(err error) error {
	var f fault
	if !errors.As(err, &f) {
		return err
	}
	return elsewhereError{f, err}
}

// An elsewhereError is a failure of one endpoint among others.
type elsewhereError struct {
	fault
	all error
}

func (e elsewhereError) Error() string { return e.all.Error() }
func (e elsewhereError) Unwrap() error { return e.all }

// Elsewhere is true: the request was not sent, and another endpoint may take it.
func (e elsewhereError) Elsewhere() bool { return true }
