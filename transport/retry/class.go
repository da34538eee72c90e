// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/warmwire/warmwire/transport/hints"
)

// A Reason says what came of an attempt, as far as it bears on another one. The set
// is closed: it is a metric label.
type Reason string

// The reasons, from proven to hopeless.
const (
	Unsent    Reason = "unsent"     // no byte of the request was written
	Refused   Reason = "refused"    // sent, and the upstream says that it has not looked at it
	TryLater  Reason = "try_later"  // 429, 503 or 529 with a hint when to come back
	Answered  Reason = "answered"   // another status of an error
	CutBefore Reason = "cut_before" // the connection broke before a byte of the answer
	CutAfter  Reason = "cut_after"  // it broke within the head of the answer
	Late      Reason = "late"       // a limit passed
	Hopeless  Reason = "hopeless"   // it would fail again: not sent, and never will be as it is
	Unknown   Reason = "unknown"    // an error that proves nothing
	Slow      Reason = "slow"       // no head by the learned 95th percentile
)

// A Verdict says what was decided after an attempt. The set is closed: it is a
// metric label.
type Verdict string

// The verdicts.
const (
	Retried       Verdict = "retried"
	Disabled      Verdict = "disabled"       // the operator has not named it, or nothing could
	Forbidden     Verdict = "forbidden"      // X-Should-Retry: false
	Exhausted     Verdict = "exhausted"      // MaxAttempts were made
	OverBudget    Verdict = "budget"         // too many attempts for the calls of late
	NotReplayable Verdict = "not_replayable" // the body is not kept, or the app has seen something of the answer
	TooLong       Verdict = "too_long"       // the upstream asks for more than MaxDelay
	PastDeadline  Verdict = "deadline"       // the app would not wait for it
	AppGone       Verdict = "app_gone"
	Hedged        Verdict = "hedged"
	HedgeWon      Verdict = "hedge_won"
	HedgeLost     Verdict = "hedge_lost"
)

// A Decision is one verdict.
type Decision struct {
	Reason  Reason
	Verdict Verdict
	Attempt int           // that it is about, from 1
	Status  int           // of its answer; 0 = none
	Wait    time.Duration // until the next attempt, if Retried
}

// A fault is what an error of the way out can tell. This package does not import
// the transport, so it finds these methods on whatever error it is given.
type fault interface {
	error
	Phase() string     // queue, dns, connect, tls, send or wait
	Code() string      // stable
	Timeout() bool     // a limit passed
	RequestSent() bool // a byte of the request may have reached the wire
}

// An outcome is what came of an attempt, judged.
type outcome struct {
	reason  Reason
	enabled bool // tried again by default, or by the operator's choice
	proven  bool // not processed
	status  int
	asked   time.Duration // to be left alone
	hint    bool          // asked was said by the upstream
	no      bool          // X-Should-Retry: false
	at      bool          // it was one endpoint's failure, and another is untried: it need not wait
}

// judgeError names the class of an error. first says that a byte of the answer had
// come.
func (t *Transport) judgeError(err error, first bool) outcome {
	var f fault
	if !errors.As(err, &f) {
		if first {
			return outcome{reason: CutAfter}
		}
		if brokenPipe(err) {
			return outcome{reason: CutBefore, enabled: t.cfg.Resets}
		}
		return outcome{reason: Unknown}
	}
	switch {
	case !f.RequestSent() && elsewhere(err): // what is wrong with one endpoint says nothing of another
		return outcome{reason: Unsent, enabled: true, proven: true, at: true}
	case !f.RequestSent() && hopeless(f):
		return outcome{reason: Hopeless, proven: true}
	case !f.RequestSent() && f.Timeout(): // opening a connection took all the time that there was
		return outcome{reason: Late, proven: true}
	case !f.RequestSent() && f.Phase() == "wait":
		return outcome{reason: Refused, enabled: true, proven: true}
	case !f.RequestSent():
		return outcome{reason: Unsent, enabled: true, proven: true}
	case f.Timeout():
		return outcome{reason: Late}
	case first:
		return outcome{reason: CutAfter}
	case strings.HasSuffix(f.Code(), "_reset"), strings.HasSuffix(f.Code(), "_closed"):
		return outcome{reason: CutBefore, enabled: t.cfg.Resets}
	}
	return outcome{reason: Unknown}
}

// elsewhere says that the failure was that of one endpoint among others.
func elsewhere(err error) bool {
	var e interface{ Elsewhere() bool }
	return errors.As(err, &e) && e.Elsewhere()
}

// hopeless says that an unsent request would fail in the same way again, or that it
// is Warmwire itself that has no room: waiting for that would be a queue without end.
func hopeless(f fault) bool {
	var dns *net.DNSError
	switch code := f.Code(); {
	case f.Phase() == "queue":
		return true
	case strings.HasSuffix(code, "_untrusted"), strings.HasSuffix(code, "_wrong_name"), strings.HasSuffix(code, "_expired"), strings.HasSuffix(code, "_client_certificate"):
		return true
	case strings.HasSuffix(code, "_denied"): // by ourselves
		return true
	case strings.HasSuffix(code, "_bad_response"), strings.HasSuffix(code, "_too_large"), strings.HasSuffix(code, "_protocol_error"):
		return true // the request itself cannot be sent
	}
	return errors.As(f, &dns) && dns.IsNotFound
}

// brokenPipe knows a broken connection by the errors of the standard library.
func brokenPipe(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// judgeAnswer names the class of an answer. An empty reason means that nobody would
// try it again.
func (t *Transport) judgeAnswer(resp *http.Response, now time.Time) outcome {
	status := resp.StatusCode
	o := outcome{reason: Answered, enabled: t.statuses[status], status: status}
	if !o.enabled && status != http.StatusTooManyRequests && status < 500 {
		return outcome{}
	}
	o.asked, o.hint = hints.Asked(status, resp.Header, now)
	should := resp.Header.Get("X-Should-Retry")
	o.no = strings.EqualFold(should, "false")
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, 529:
		if o.hint || strings.EqualFold(should, "true") {
			o.reason = TryLater
		}
	}
	return o
}

// A sentError is a failure of an attempt that was not sent, after one that may have
// been processed: of the call as a whole it must not be said that it was not sent.
type sentError struct{ fault }

// Unwrap returns the attempt's own failure.
func (e sentError) Unwrap() error { return e.fault }

// RequestSent is true: an earlier attempt was.
func (e sentError) RequestSent() bool { return true }

// marked returns err such that it says that the request was sent.
func marked(err error) error {
	var f fault
	if errors.As(err, &f) && !f.RequestSent() {
		if f == err {
			return sentError{f}
		}
		return sentError{wrapped{f, err}}
	}
	return err
}

// wrapped keeps the text and the chain of an error that holds a fault.
type wrapped struct {
	fault
	all error
}

func (w wrapped) Error() string { return w.all.Error() }
func (w wrapped) Unwrap() error { return w.all }
