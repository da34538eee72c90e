// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport/fault"
)

// An Error says in which phase of a request it failed. Errors of opening a
// connection come from the dial package, with the same methods.
type Error = fault.Error

// typed is what errors of this package and of dial have in common.
type typed interface {
	error
	Phase() string
	Code() string
	RequestSent() bool
}

// kindAnonymous is the code of a server that wants to know who we are, when we have no
// certificate to show.
const kindAnonymous = "upstream_tls_client_certificate"

// tlsError names what is wrong with a handshake, in words to act on.
func tlsError(host string, err error, handshake time.Duration) *Error {
	e := &Error{In: "tls", Kind: "upstream_tls_failed", Err: fmt.Errorf("TLS handshake with %s: %w", host, err)}
	var untrusted *trust.Error
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		e.Kind, e.Expired, e.Limit = "upstream_tls_timeout", true, "timeouts.tls_handshake"
		e.Err = fmt.Errorf("TLS handshake with %s took longer than %v", host, handshake)
	case errors.As(err, &untrusted):
		e.Kind, e.Err = "upstream_tls_untrusted", err
		switch untrusted.Reason {
		case trust.WrongName:
			e.Kind = "upstream_tls_wrong_name"
		case trust.Expired, trust.NotYetValid:
			e.Kind = "upstream_tls_expired"
		}
	case errors.As(err, &record):
		e.Err = fmt.Errorf("%s does not speak TLS on this port: is the upstream's url http:// instead?", host)
	}
	return e
}

// classify makes an error of the way out one that says its phase and code. The
// cause of cancellation goes before it. anonymous: there is no certificate of ours.
func classify(ctx context.Context, err error, anonymous bool) error {
	var t typed
	if cause := context.Cause(ctx); cause != nil {
		if errors.As(cause, &t) {
			return cause
		}
		return errors.Join(cause, err)
	}
	found := errors.As(err, &t)
	if found && t.Code() == kindAnonymous {
		return err
	}
	if alert := remoteAlert(err); alert != "" {
		// With TLS 1.3 the server judges our certificate after our handshake is over: what
		// is known of the request stays true.
		e := &Error{In: "tls", Kind: "upstream_tls_failed", Err: fmt.Errorf("the upstream ended the TLS connection: %w", err)}
		if found && t.RequestSent() {
			e.In, e.Sent = "wait", true
		}
		if strings.Contains(alert, "certificate") || strings.Contains(alert, "access denied") {
			e.Err = fmt.Errorf("%w; if it asks for a client certificate, see tls.client_cert", e.Err)
		}
		if anonymous && (strings.HasSuffix(alert, "certificate required") || strings.HasSuffix(alert, "bad certificate")) {
			e.Kind = kindAnonymous // what it cannot accept is ours, that is none
		}
		return e
	}
	if found {
		return err
	}
	return &Error{In: "send", Kind: "upstream_closed", Err: err}
}

// remoteAlert is the alert with which the peer ended TLS, "" if it did not. crypto/tls
// marks it by the operation alone.
func remoteAlert(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return op.Err.Error()
	}
	return ""
}
