// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
)

// A Kind says at which step a handshake failed.
type Kind string

// The kinds.
const (
	Unreachable Kind = "unreachable" // no TCP connection
	Silent      Kind = "silent"      // connected, and then no answer in time
	NoTLS       Kind = "no_tls"      // answered in another protocol
	Closed      Kind = "closed"      // hung up in the middle
	Refused     Kind = "refused"     // said no by an alert
	ClientCert  Kind = "client_certificate"
	Untrusted   Kind = "untrusted" // its certificate does not verify
	Unsuited    Kind = "unsuited"  // its answer is not acceptable to us
	Stopped     Kind = "stopped"   // the caller's context ended
)

// A Failure is a handshake that did not succeed.
type Failure struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
	err  error
}

func (f *Failure) Error() string { return f.Text }
func (f *Failure) Unwrap() error { return f.err }

func dialFailure(err error) *Failure {
	f := &Failure{Unreachable, err.Error(), err}
	var ne net.Error
	switch {
	case errors.Is(err, context.Canceled):
		f.Kind, f.Text = Stopped, "stopped"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Text = "connection refused: nothing listens on this port"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		f.Text = "no connection in time: the host is away, or something drops what is sent to this port"
	}
	return f
}

// handshakeFailure says what went wrong after the connection was there. asked
// tells whether the server had asked for a client certificate.
func handshakeFailure(err error, asked bool, cfg Config) *Failure {
	f := &Failure{Unsuited, strings.TrimPrefix(err.Error(), "tls: "), err}
	var other tls.RecordHeaderError
	var op *net.OpError
	var ne net.Error
	var cert *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &other):
		f.Kind, f.Text = NoTLS, "this port speaks no TLS"
		if bytes.HasPrefix(other.RecordHeader[:], []byte("HTTP")) {
			f.Text += " but plain HTTP"
		}
	case errors.As(err, &cert), errors.As(err, &unknown):
		f.Kind = Untrusted
	case errors.As(err, &op) && op.Op == "remote error":
		f.Kind, f.Text = Refused, "the server refuses with the alert "+quote(op.Err)
		if asked {
			f.Kind, f.Text = ClientCert, certificateRefused(cfg, quote(op.Err))
		}
	case errors.Is(err, context.Canceled):
		f.Kind, f.Text = Stopped, "stopped"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		f.Kind, f.Text = Silent, fmt.Sprintf("the server accepts the connection and says nothing for %v", cfg.Timeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		f.Kind, f.Text = Closed, "the server closes the connection in the handshake"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		f.Kind, f.Text = Closed, "the connection is reset in the handshake"
	}
	return f
}

// lateFailure is a server's no to a handshake that was over for the client: with
// TLS 1.3 a client certificate is judged only then. nil for all else.
func lateFailure(err error, asked bool, cfg Config) *Failure {
	var op *net.OpError
	if !asked || !errors.As(err, &op) || op.Op != "remote error" {
		return nil
	}
	return &Failure{ClientCert, certificateRefused(cfg, quote(op.Err)), err}
}

func certificateRefused(cfg Config, alert string) string {
	if cfg.ClientCert == nil {
		return "the server wants a client certificate, and tls.client_cert is not set: alert " + alert
	}
	return "the server refuses the client certificate with the alert " + alert
}

func quote(err error) string {
	return fmt.Sprintf("%q", strings.TrimPrefix(err.Error(), "tls: "))
}
