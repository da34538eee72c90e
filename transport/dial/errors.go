// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// An Error says which step of opening a connection failed.
type Error struct {
	Step    string // dns, connect or tls: also the metric label
	Kind    string // stable code, also a metric label
	Addr    string // host:port
	Limit   string // the setting that passed, if one did
	Expired bool
	Err     error
}

func (e *Error) Error() string {
	if e.Limit != "" && e.Expired {
		return fmt.Sprintf("%s %s: no success within %s: %v", e.Step, e.Addr, e.Limit, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Step, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Phase is the step that failed.
func (e *Error) Phase() string { return e.Step }

// Code is the stable code of the failure.
func (e *Error) Code() string { return e.Kind }

// Timeout says whether a limit passed.
func (e *Error) Timeout() bool { return e.Expired }

// RequestSent is always false: there was no connection yet.
func (e *Error) RequestSent() bool { return false }

// Denied describes a target that we refuse to reach ourselves, for the reason err.
func Denied(addr string, err error) *Error {
	return &Error{Step: "connect", Kind: "target_denied", Addr: addr, Err: err}
}

// dnsError describes a failed lookup. parent is the caller's context: its end is
// not the name's fault.
func dnsError(addr string, err error) *Error {
	e := &Error{Step: "dns", Kind: "upstream_dns_failed", Addr: addr, Err: err, Limit: "timeouts.connect"}
	var de *net.DNSError
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &de) && de.IsTimeout {
		e.Kind, e.Expired = "upstream_dns_timeout", true
	}
	return e
}

// connectError describes addresses none of which could be reached.
func connectError(addr string, err error) *Error {
	e := &Error{Step: "connect", Kind: "upstream_connect_failed", Addr: addr, Err: err, Limit: "timeouts.connect"}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		e.Kind, e.Expired = "upstream_connect_timeout", true
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Kind = "upstream_connect_refused"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Kind = "upstream_unreachable"
	}
	return e
}
