// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/quic-go/quic-go"
	"github.com/warmwire/warmwire/transport/fault"
)

// Kinds of failure; see the fault package.
const (
	kindClosed   = "upstream_closed"
	kindReset    = "upstream_reset"
	kindProtocol = "upstream_protocol_error"
	kindBad      = "upstream_bad_response"
	kindTooLarge = "upstream_header_too_large"
	kindSilent   = "upstream_unreachable"
	kindTimeout  = "upstream_connect_timeout"
	kindRefused  = "upstream_connect_refused"
	kindTLS      = "upstream_tls_failed"
)

// An errCode is a code of HTTP/3 (RFC 9114 §8.1) or QPACK (RFC 9204 §6).
type errCode uint64

const (
	codeNone              errCode = 0x100
	codeInternal          errCode = 0x102
	codeStreamCreation    errCode = 0x103
	codeClosedCritical    errCode = 0x104
	codeFrameUnexpected   errCode = 0x105
	codeFrame             errCode = 0x106
	codeExcessiveLoad     errCode = 0x107
	codeID                errCode = 0x108
	codeSettings          errCode = 0x109
	codeMissingSettings   errCode = 0x10a
	codeRejected          errCode = 0x10b
	codeCancelled         errCode = 0x10c
	codeMessage           errCode = 0x10e
	codeVersionFallback   errCode = 0x110
	codeQPACKDecompress   errCode = 0x200
	codeQPACKEncoder      errCode = 0x201
	firstCode, lastCode           = codeNone, codeVersionFallback
	firstQPACK, lastQPACK         = codeQPACKDecompress, errCode(0x202)
)

var errBodyClosed = errors.New("h3: the response body was closed")

// broken names why a connection has ended.
func broken(err error) *fault.Error {
	f := &fault.Error{In: "wait", Kind: kindClosed}
	var app *quic.ApplicationError
	var tr *quic.TransportError
	var idle *quic.IdleTimeoutError
	var late *quic.HandshakeTimeoutError
	var reset *quic.StatelessResetError
	switch {
	case errors.As(err, &app) && app.Remote:
		f.Kind, f.Err = appKind(errCode(app.ErrorCode)), fmt.Errorf("the upstream closed the connection (%#x): %w", uint64(app.ErrorCode), err)
	case errors.As(err, &tr) && tr.Remote:
		f.Kind, f.Err = kindProtocol, fmt.Errorf("the upstream closed the QUIC connection: %w", err)
		switch tr.ErrorCode {
		case quic.NoError:
			f.Kind = kindClosed
		case quic.ConnectionRefused:
			f.Kind = kindRefused
		}
	case errors.As(err, &tr):
		f.Kind, f.Err = kindProtocol, fmt.Errorf("the upstream breaks QUIC: %w", err)
	case errors.As(err, &idle), errors.As(err, &late):
		f.Kind, f.Expired, f.Err = kindSilent, true, fmt.Errorf("no packet came from the upstream for too long: %w", err)
	case errors.As(err, &reset):
		f.Kind, f.Err = kindReset, fmt.Errorf("the upstream knows the connection no more: %w", err)
	case errors.Is(err, quic.Err0RTTRejected):
		f.Err = fmt.Errorf("the upstream refused early data: %w", err)
	default:
		f.Err = fmt.Errorf("the connection to the upstream ended: %w", err)
	}
	return f
}

func appKind(code errCode) string {
	switch code {
	case codeNone:
		return kindClosed
	case codeInternal, 0: // 0 is no code of HTTP/3: what ends a process
		return kindReset
	}
	return kindProtocol
}

// openFailed names why no connection could be opened.
func openFailed(ctx context.Context, addr string, err error) error {
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
		return cause
	}
	f := broken(err)
	f.In, f.Sent = "tls", false
	var alert tls.AlertError
	var verify *tls.CertificateVerificationError
	var tr *quic.TransportError
	switch {
	case f.Kind == kindSilent:
		f.Kind = kindTimeout
	case errors.As(err, &verify), errors.As(err, &alert), errors.As(err, &tr) && tr.ErrorCode.IsCryptoError():
		f.Kind = kindTLS
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		f.Kind = kindSilent
	case errors.Is(err, net.ErrClosed):
	}
	f.Err = fmt.Errorf("open HTTP/3 to %s: %w", addr, f.Err)
	return f
}

// resetBy is the failure of a stream that the peer reset. started says that its
// answer had begun: then no code proves anything.
func resetBy(code errCode, sent, started bool) *fault.Error {
	f := &fault.Error{In: "wait", Kind: kindReset, Sent: sent, Err: fmt.Errorf("the upstream reset the stream (%#x)", uint64(code))}
	switch {
	case code == codeRejected && !started:
		f.Sent = false // RFC 9114 §4.1.1: not processed
		f.Err = errors.New("the upstream refused the stream unprocessed (H3_REQUEST_REJECTED)")
	case code == codeVersionFallback:
		f.Kind = kindProtocol
		f.Err = errors.New("the upstream wants HTTP/1.1 for this request (H3_VERSION_FALLBACK): set protocols to http/1.1 alone")
	case code == codeInternal, code == codeCancelled, code == codeRejected, code == codeNone:
	case code >= firstCode && code <= lastCode, code >= firstQPACK && code <= lastQPACK:
		f.Kind = kindProtocol
	}
	return f
}

// A connError ends the connection (RFC 9114 §8).
type connError struct {
	code errCode
	text string
}

func (e *connError) Error() string { return fmt.Sprintf("%s (%#x)", e.text, uint64(e.code)) }

func violation(code errCode, format string, args ...any) *connError {
	return &connError{code: code, text: fmt.Sprintf(format, args...)}
}
