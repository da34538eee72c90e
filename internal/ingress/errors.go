// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/http1"
)

// phaseError is what an error of the way out can tell. Ingress does not import
// the transport, so it finds these methods on whatever error it is given.
type phaseError interface {
	error
	Phase() string     // queue, dns, connect, tls, send or wait
	Code() string      // stable, also a metric label
	Timeout() bool     // a limit passed
	RequestSent() bool // a byte of the request may have reached the wire
}

// A limitError is a limit of the relay loop that passed. It is the cause with
// which the upstream request is cancelled.
type limitError struct {
	code    string
	setting string
}

// Timeout says that whoever should have sent something did not: a total that was too short
// for an answer is nobody's fault.
func (e *limitError) Timeout() bool { return e == errIdle || e == errTunnelIdle || e == errFirstToken }

func (e *limitError) Error() string {
	return "the limit " + e.setting + " passed"
}

var (
	errIdle       = &limitError{CauseIdle, "timeouts.idle"}
	errFirstToken = &limitError{CauseFirstToken, "timeouts.first_token"}
	errTotal      = &limitError{CauseTotal, "timeouts.total"}
	errTunnelIdle = &limitError{CauseIdle, "forward.idle_timeout"}
	errStalled    = &limitError{CauseStalled, "buffer.stall_timeout"}
	errAborted    = errors.New("shutting down, and drain.timeout passed")
	errBodyLimit  = errors.New("the request body is larger than limits.body")
	// errUploadCut is matched when the app's request body ended too early.
	errUploadCut = errors.New("the request body ended before its announced end")
)

// An overload is the error of [Config.Admit].
type overload struct{ err error }

func (o *overload) Error() string { return o.err.Error() }

func (o *overload) Unwrap() error { return o.err }

// failure is 503: nothing was sent, and later there may be room.
func (o *overload) failure() failure {
	f := failure{status: http.StatusServiceUnavailable, code: CauseOverloaded, proxy: "http_request_denied", message: o.Error(),
		outcome: OutcomeRefused, cause: CauseOverloaded}
	f.after = retryAfter(o.err)
	return f
}

// retryAfter is when an error says that another try makes sense, 0 if it does not.
func retryAfter(err error) time.Duration {
	var later interface{ RetryAfter() time.Duration }
	if errors.As(err, &later) {
		return later.RetryAfter()
	}
	return 0
}

// A failure is one of our own answers.
type failure struct {
	status  int
	code    string // stable, for programs
	proxy   string // RFC 9209 §2.3 error type
	message string // for people: phase and setting, no secrets
	sent    bool   // request bytes may have reached the upstream
	outcome Outcome
	cause   string
	after   time.Duration // when to try again, for 503 and 429; 0 = 1 s
	again   bool          // that helps, if nothing was sent
	close   bool          // the app's connection ends with it
}

func ours(status int, code, proxy, message string, sent bool, outcome Outcome, cause string) failure {
	return failure{status: status, code: code, proxy: proxy, message: message, sent: sent, outcome: outcome, cause: cause}
}

// classify turns the error of a round trip into our answer and its cause.
func classify(ctx context.Context, err error) failure {
	if f, ok := classifyCause(context.Cause(ctx)); ok {
		return f
	}
	var full *overload
	if errors.As(err, &full) {
		return full.failure()
	}
	var pe phaseError
	found := errors.As(err, &pe)
	f := ours(http.StatusBadGateway, "upstream_failed", "proxy_internal_error", "request to the upstream failed: "+err.Error(),
		true, OutcomeUpstreamError, "upstream_failed")
	if found {
		f.code, f.cause, f.sent = pe.Code(), pe.Code(), pe.RequestSent()
		f.message = pe.Error()
		if !strings.HasPrefix(f.message, pe.Phase()+" ") { // dial errors begin with it
			f.message = pe.Phase() + ": " + f.message
		}
		f.proxy = proxyErrorType(pe)
		switch {
		case pe.Phase() == "queue": // it is Warmwire that has no room
			f.status, f.after = http.StatusServiceUnavailable, retryAfter(err)
			var own interface{ Status() int } // 429 if it is the caller's doing
			if errors.As(err, &own) {
				f.status = own.Status()
			}
		case pe.Timeout():
			f.status = http.StatusGatewayTimeout
		}
	}
	switch {
	case errors.Is(err, ErrLoop):
		f = ours(http.StatusLoopDetected, "loop_detected", "proxy_loop_detected", ErrLoop.Error(), false, OutcomeRefused, "loop")
	case errors.Is(err, ErrForbidden):
		f = ours(http.StatusForbidden, "target_denied", "destination_ip_prohibited",
			err.Error(), false, OutcomeRefused, "target_denied")
	case errors.Is(err, errBodyLimit):
		f = bodyTooLarge(true)
	case errors.Is(err, errUploadCut):
		f = uploadCut()
	}
	return f
}

// classifyCause knows the causes with which this package cancels a request.
func classifyCause(cause error) (failure, bool) {
	var le *limitError
	var quota *overQuota
	switch {
	case cause == nil:
		return failure{}, false
	case errors.Is(cause, errStalled): // after the head, so nobody reads this answer
		return ours(http.StatusGatewayTimeout, CauseStalled, "http_request_error", "the app took nothing for buffer.stall_timeout", true,
			OutcomeCutWarmwire, CauseStalled), true
	case errors.As(cause, &le):
		return ours(http.StatusGatewayTimeout, "upstream_"+le.code, "http_response_timeout",
			"no answer in time: raise "+le.setting+" if the upstream may take longer", true, OutcomeCutWarmwire, le.code), true
	case errors.Is(cause, errAborted):
		return ours(http.StatusServiceUnavailable, "shutting_down", "proxy_internal_error", errAborted.Error(), true,
			OutcomeCutWarmwire, CauseDrain), true
	case errors.Is(cause, errBodyLimit):
		return bodyTooLarge(true), true
	case errors.As(cause, &quota):
		return quota.failure(true), true
	case errors.Is(cause, errUploadCut):
		return uploadCut(), true
	case appLeft(cause):
		return ours(499, "app_left", "", "the app closed its connection", true, OutcomeCutApp, CauseAppLeft), true
	}
	return failure{}, false
}

// appLeft reads the cause of a request's context. net/http's HTTP/2 server gives none:
// there a closed connection and RST_STREAM are plain cancellations.
func appLeft(cause error) bool {
	return errors.Is(cause, http1.ErrClientLeft) || errors.Is(cause, context.Canceled)
}

func uploadCut() failure {
	return ours(http.StatusBadRequest, "request_truncated", "http_request_error", errUploadCut.Error(), true,
		OutcomeCutApp, CauseAppUploadBroken)
}

func bodyTooLarge(sent bool) failure {
	return ours(http.StatusRequestEntityTooLarge, "request_body_too_large", "http_request_error",
		errBodyLimit.Error(), sent, OutcomeRefused, CauseBodyTooLarge)
}

// proxyErrorType maps a code to the error types of RFC 9209 §2.3.
func proxyErrorType(pe phaseError) string {
	switch phase, timeout := pe.Phase(), pe.Timeout(); {
	case phase == "queue":
		return "connection_limit_reached"
	case phase == "dns" && timeout:
		return "dns_timeout"
	case phase == "dns":
		return "dns_error"
	case strings.HasSuffix(pe.Code(), "_refused"):
		return "connection_refused"
	case phase == "connect" && timeout:
		return "connection_timeout"
	case phase == "connect":
		return "destination_unavailable"
	case phase == "tls" && (strings.HasSuffix(pe.Code(), "untrusted") || strings.HasSuffix(pe.Code(), "expired") ||
		strings.HasSuffix(pe.Code(), "wrong_name")):
		return "tls_certificate_error"
	case phase == "tls":
		return "tls_protocol_error"
	case phase == "send" && timeout:
		return "connection_write_timeout"
	case phase == "wait" && timeout:
		return "http_response_timeout"
	case strings.Contains(pe.Code(), "header_too_large"):
		return "http_response_header_section_size"
	case strings.Contains(pe.Code(), "bad_response"), strings.Contains(pe.Code(), "protocol"):
		return "http_protocol_error"
	}
	return "connection_terminated"
}

// cutCause names why a response that had begun broke off.
func cutCause(ctx context.Context, err error) (Outcome, string) {
	if f, ok := classifyCause(context.Cause(ctx)); ok {
		return f.outcome, f.cause
	}
	var pe phaseError
	if errors.As(err, &pe) && pe.Code() == CauseDeadFlow {
		return OutcomeCutUpstream, CauseDeadFlow
	}
	if errors.Is(err, syscall.ECONNRESET) || strings.Contains(err.Error(), "stream error") {
		return OutcomeCutUpstream, CauseReset
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return OutcomeCutUpstream, CauseTruncated
	}
	if pe != nil {
		return OutcomeCutUpstream, pe.Code()
	}
	return OutcomeCutUpstream, CauseTruncated
}

// fail answers with an error of ours in the dialect's own shape. After request
// bytes may have left, an SDK must not pay twice: x-should-retry says so.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, kind dialect.Kind, f failure) {
	h := w.Header()
	clear(h)
	body := dialect.ErrorBody(kind, f.status, f.code, "Warmwire: "+f.message)
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["Cache-Control"] = []string{"no-store"}
	h["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)} // RFC 9110 §6.6.1: this answer's origin is us
	h["X-Should-Retry"] = []string{strconv.FormatBool(!f.sent && (f.again || f.outcome == OutcomeUpstreamError || f.code == CauseOverloaded || f.cause == CauseDrain))}
	if f.close { // over HTTP/2 this makes net/http send GOAWAY
		h["Connection"] = []string{"close"}
	}
	if f.proxy != "" {
		h["Proxy-Status"] = []string{"warmwire; error=" + f.proxy + "; details=" + strconv.QuoteToASCII(f.code)}
	}
	switch f.status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		seconds := max(1, int64((f.after+time.Second-1)/time.Second))
		h["Retry-After"] = []string{strconv.FormatInt(seconds, 10)}
	case http.StatusProxyAuthRequired:
		h["Proxy-Authenticate"] = []string{`Basic realm="warmwire"`}
	case http.StatusUnauthorized:
		h["Www-Authenticate"] = []string{`Bearer realm="warmwire"`}
	}
	w.WriteHeader(f.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the app may be gone; the record says so already
	}
}
