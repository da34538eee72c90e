// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// An Outcome says how a call ended.
type Outcome string

// The outcomes.
const (
	OK          Outcome = "ok"          // the stream ended as its protocol says
	Unreachable Outcome = "unreachable" // no connection: name, connect or TLS
	Status      Outcome = "status"      // answered with another status than success
	ErrorEvent  Outcome = "error_event" // an error inside the stream
	Reset       Outcome = "reset"       // the connection or stream was reset or lost
	Timeout     Outcome = "timeout"     // the limit of the call passed
	MissingEnd  Outcome = "missing_end" // the answer ended without the protocol's end
	Malformed   Outcome = "malformed"   // the answer is no stream of the protocol
	NotSent     Outcome = "not_sent"    // too many calls were in flight when it was due
	Stopped     Outcome = "stopped"     // the measurement was stopped
)

// outcomes in the order in which they are shown.
var outcomes = [...]Outcome{OK, Unreachable, Status, ErrorEvent, Reset, Timeout, MissingEnd, Malformed, NotSent, Stopped}

// A Leg is one of the two ways that are compared.
type Leg int

// The legs.
const (
	Direct Leg = iota
	Through
)

func (l Leg) String() string {
	if l == Through {
		return "through"
	}
	return "direct"
}

// A Phase is a part of a call before its first event.
type Phase int

// The phases. A reused connection has only the last two.
const (
	DNS     Phase = iota // look-up of the name
	Connect              // TCP, from the first attempt to the connection
	TLS                  // handshake
	Request              // connection ready until the request is written; for a WebSocket, its upgrade
	Wait                 // request written until the first byte of the answer; for a WebSocket, the first frame
	phases
)

func (p Phase) String() string { return [...]string{"dns", "connect", "tls", "request", "wait"}[p] }

// A Result is what was seen of one call. Times count from t0, the moment the
// call was handed to the client, before any look-up or connect.
type Result struct {
	Leg     Leg
	Number  int
	Outcome Outcome
	Reason  string // in words, without anything secret; empty if OK

	Phase     [phases]time.Duration // -1 where it did not happen
	Opened    bool                  // on a connection of its own, not a reused one
	Handshake bool                  // TLS was negotiated for it
	Resumed   bool                  // by resuming a session

	Begun  bool          // the head of a stream arrived
	Setup  time.Duration // response head − t0, if Begun
	First  time.Duration // first token-bearing event − t0, TTFT, if Chunks > 0
	Last   time.Duration // last token-bearing event − t0, if Chunks > 0
	End    time.Duration // end of the call − t0, however it ended; e2e if OK
	Chunks int           // token-bearing events
	Gaps   []time.Duration

	PromptTokens int  // as the server counts them; 0 if it does not say
	OutputTokens int  // as the server counts them, else the number of chunks
	Counted      bool // OutputTokens is the number of chunks
}

// TPOT is the time per output token, (e2e − TTFT)/(N − 1), of a call that ended
// well with more than one token.
func (r *Result) TPOT() (d time.Duration, ok bool) {
	if r.Outcome != OK || r.OutputTokens < 2 || r.Chunks == 0 {
		return 0, false
	}
	return (r.End - r.First) / time.Duration(r.OutputTokens-1), true
}

// PerChunk is the time per output chunk, (last − first)/(chunks − 1).
func (r *Result) PerChunk() (d time.Duration, ok bool) {
	if r.Outcome != OK || r.Chunks < 2 {
		return 0, false
	}
	return (r.Last - r.First) / time.Duration(r.Chunks-1), true
}

// Streaming is how long the answer was open.
func (r *Result) Streaming() time.Duration {
	if !r.Begun {
		return 0
	}
	return r.End - r.Setup
}

// Interrupted tells whether a stream was cut: its answer had begun and then
// ended by reset, time-out or without its end.
func (r *Result) Interrupted() bool {
	return r.Begun && (r.Outcome == Reset || r.Outcome == Timeout || r.Outcome == MissingEnd)
}

// Limits are the service level objectives of goodput. Zero is no limit.
type Limits struct{ TTFT, TPOT, E2E time.Duration }

// Met tells whether a call ended well within all limits. A call with at most one
// token has a time per output token of zero.
func (l Limits) Met(r *Result) bool {
	tpot, _ := r.TPOT()
	within := func(v, limit time.Duration) bool { return limit == 0 || v <= limit }
	return r.Outcome == OK && within(r.First, l.TTFT) && within(tpot, l.TPOT) && within(r.End, l.E2E)
}

// A reader folds the events of one stream into a Result. It takes no clock.
type reader struct {
	api   API
	r     *Result
	ended bool
}

// errAnswered ends the reading of a stream that has said all it will say.
var errAnswered = errors.New("the stream has ended")

// message takes one event that was complete at time at.
func (d *reader) message(at time.Duration, data []byte) error {
	e, err := d.api.read(data)
	if err != nil {
		return err
	}
	if e.prompt > 0 {
		d.r.PromptTokens = e.prompt
	}
	if e.output > 0 {
		d.r.OutputTokens = e.output
	}
	if e.token {
		if d.r.Chunks == 0 {
			d.r.First = at
		} else {
			d.r.Gaps = append(d.r.Gaps, at-d.r.Last)
		}
		d.r.Last = at
		d.r.Chunks++
	}
	switch {
	case e.failed:
		d.r.Outcome, d.r.Reason = ErrorEvent, e.reason
		return errAnswered
	case e.end:
		d.ended = true
		if !d.api.endsByEOF() {
			return errAnswered
		}
	}
	return nil
}

// finish judges a stream whose reading ended at time at with err; io.EOF is
// the clean end of the answer.
func (d *reader) finish(ctx context.Context, at time.Duration, err error) {
	d.r.End = at
	if d.r.OutputTokens == 0 {
		d.r.OutputTokens, d.r.Counted = d.r.Chunks, true
	}
	switch {
	case d.r.Outcome != "":
	case d.ended && (errors.Is(err, errAnswered) || errors.Is(err, io.EOF)):
		d.r.Outcome = OK
	case errors.Is(err, errNoJSON), errors.Is(err, errEventTooLong):
		d.r.Outcome, d.r.Reason = Malformed, err.Error()
	case errors.Is(err, io.EOF):
		d.r.Outcome, d.r.Reason = MissingEnd, "ended without its last event"
	default:
		d.r.Outcome, d.r.Reason = judge(ctx, err, "in the stream")
	}
}

// judge names the outcome of a call that an error ended.
func judge(ctx context.Context, err error, where string) (Outcome, string) {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
		return Stopped, "the measurement was stopped"
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return Timeout, "time-out " + where
	case errors.Is(err, io.ErrUnexpectedEOF):
		return MissingEnd, "closed " + where
	}
	return Reset, cause(err) + " " + where
}

// streamID is what makes equal errors differ.
var streamID = regexp.MustCompile(`stream ID \d+; `)

// cause says what is behind err, in few words that are the same for every call
// and hold nothing that the server or the user wrote.
func cause(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return "closed"
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if bad, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return bad.Error()
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		err = bad.Err
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			break
		}
		err = inner
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "time-out"
	}
	text, _, _ := strings.Cut(streamID.ReplaceAllString(err.Error(), ""), `"`)
	return strings.TrimSpace(text[:min(len(text), 100)])
}
