// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/warmwire/warmwire/transport/fault"
	"golang.org/x/net/http2"
)

// Kinds of failure; see the fault package.
const (
	kindClosed   = "upstream_closed"
	kindReset    = "upstream_reset"
	kindProtocol = "upstream_protocol_error"
	kindBad      = "upstream_bad_response"
	kindTooLarge = "upstream_header_too_large"
	kindSilent   = "upstream_unreachable"
)

var (
	// errBodyClosed is what a Read returns after Close, or one that Close interrupts.
	errBodyClosed = errors.New("h2: the response body was closed")
	// ErrPingRefused is returned by [Conn.Ping] once the peer has asked for calm.
	ErrPingRefused = errors.New("h2: the upstream has asked for fewer PINGs")
)

// broken names what is wrong with a connection that cannot be read or written.
func broken(err error) *fault.Error {
	f := &fault.Error{In: "wait", Kind: kindClosed}
	switch {
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		f.Kind, f.Err = kindReset, fmt.Errorf("the upstream reset the connection: %w", err)
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		f.Kind, f.Expired, f.Err = kindSilent, true, fmt.Errorf("the path to the upstream is dead: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		f.Err = fmt.Errorf("the upstream closed the connection: %w", io.ErrUnexpectedEOF)
	default:
		f.Err = fmt.Errorf("the connection to the upstream broke: %w", err)
	}
	return f
}

// A connError ends the connection with GOAWAY (RFC 9113 §5.4.1).
type connError struct {
	code http2.ErrCode
	text string
}

func (e *connError) Error() string { return fmt.Sprintf("%s (%v)", e.text, e.code) }

func violation(code http2.ErrCode, format string, args ...any) *connError {
	return &connError{code: code, text: fmt.Sprintf(format, args...)}
}

// resetBy is the failure of a stream that the peer reset. started says that its
// answer had begun: then no code proves anything.
func resetBy(code http2.ErrCode, sent, started bool) *fault.Error {
	f := &fault.Error{In: "wait", Kind: kindReset, Sent: sent, Err: fmt.Errorf("the upstream reset the stream (%v)", code)}
	switch {
	case code == http2.ErrCodeRefusedStream && !started:
		f.Sent = false // RFC 9113 §8.7: not processed
		f.Err = errors.New("the upstream refused the stream unprocessed (REFUSED_STREAM)")
	case code == http2.ErrCodeHTTP11Required:
		f.Kind = kindProtocol
		f.Err = errors.New("the upstream wants HTTP/1.1 for this request (HTTP_1_1_REQUIRED): set protocols to http/1.1 alone")
	case code == http2.ErrCodeProtocol, code == http2.ErrCodeFlowControl, code == http2.ErrCodeFrameSize,
		code == http2.ErrCodeCompression, code == http2.ErrCodeStreamClosed:
		f.Kind = kindProtocol
	}
	return f
}
