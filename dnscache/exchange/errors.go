// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// A Kind says why there is no answer. Its text is fit for a metric label.
type Kind string

// The kinds of failure.
const (
	KindTimeout     Kind = "timeout"      // no usable answer in time
	KindRefused     Kind = "refused"      // nothing listens there
	KindUnreachable Kind = "unreachable"  // no way there, or the connection broke
	KindTLS         Kind = "tls"          // the handshake failed; Err has the x509 reason
	KindBadAnswer   Kind = "bad_answer"   // what came is not an answer to the question
	KindStatus      Kind = "http_status"  // the HTTPS resolver answered with another status than 2xx
	KindBadQuestion Kind = "bad_question" // the name cannot be asked; nothing was sent
	KindCanceled    Kind = "canceled"     // the caller went away
	KindClosed      Kind = "closed"       // the Exchanger was closed
)

// An Error is the only error of [Exchanger.Exchange].
type Error struct {
	Resolver string // the name of the Exchanger
	Kind     Kind
	Status   int // the HTTP status, with KindStatus
	Err      error
}

func (e *Error) Error() string {
	return fmt.Sprintf("resolver %s: %s: %v", e.Resolver, e.Kind, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether time ran out.
func (e *Error) Timeout() bool { return e.Kind == KindTimeout }

// ErrClosed is the cause of an error of [KindClosed].
var ErrClosed = errors.New("the exchanger is closed")

var (
	errNoAnswer  = errors.New("no answer in time")
	errBadAnswer = errors.New("bad answer")
	errSilent    = errors.New("the connection was silent while a newer one answered")
)

// A handshakeError is a failure between the first byte of TLS and the last.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return "handshake: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// A statusError is an HTTP answer that carries no message.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(e)) }

// fail gives err its kind. ctx is the context of the question.
func fail(ctx context.Context, resolver string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Resolver: resolver, Kind: kindOf(err), Err: err}
	if cause := context.Cause(ctx); cause != nil && e.Kind != KindClosed {
		e.Err = cause
		e.Kind = KindCanceled
		switch {
		case errors.Is(cause, ErrClosed):
			e.Kind = KindClosed
		case errors.Is(cause, context.DeadlineExceeded), errors.Is(cause, errNoAnswer):
			e.Kind = KindTimeout
		}
	}
	if status, ok := errors.AsType[statusError](err); ok && e.Kind == KindStatus {
		e.Status = int(status)
	}
	return e
}

func kindOf(err error) Kind {
	if _, ok := errors.AsType[statusError](err); ok {
		return KindStatus
	}
	netErr, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, ErrClosed):
		return KindClosed
	case errors.Is(err, errBadAnswer):
		return KindBadAnswer
	case errors.Is(err, errNoAnswer), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		isNet && netErr.Timeout():
		return KindTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		return KindRefused
	case isTLS(err):
		return KindTLS
	case errors.Is(err, context.Canceled):
		return KindCanceled
	}
	return KindUnreachable
}

// isTLS also knows the errors of a RoundTripper that is not ours.
func isTLS(err error) bool {
	if _, ok := errors.AsType[*handshakeError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.HostnameError](err)
	return ok
}
