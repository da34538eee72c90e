// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/internal/dialect"
)

// A Mode is the way a request came in.
type Mode string

// The ways in. They are also metric labels.
const (
	ModeBaseURL   Mode = "base_url"
	ModeHost      Mode = "host"
	ModeForward   Mode = "forward"   // absolute form
	ModeTunnel    Mode = "tunnel"    // CONNECT
	ModeIntercept Mode = "intercept" // inside a tunnel whose TLS is ended here
	ModeWebSocket Mode = "websocket"
)

// An Outcome says how a request ended, and who ended it if it was cut.
type Outcome string

// The outcomes. They are also metric labels.
const (
	OutcomeOK            Outcome = "ok"             // the upstream's whole answer reached the app
	OutcomeUpstreamError Outcome = "upstream_error" // no answer: the app got an error of ours
	OutcomeRefused       Outcome = "refused"        // we did not forward the request
	OutcomeCutUpstream   Outcome = "cut_upstream"   // the upstream broke off inside its answer
	OutcomeCutApp        Outcome = "cut_app"        // the app left
	OutcomeCutWarmwire   Outcome = "cut_warmwire"   // a limit of ours or a shutdown
)

// Causes of interruptions that ingress itself tells apart; errors of the way
// out bring their own code.
const (
	CauseAppLeft          = "app_left"
	CauseTruncated        = "upstream_truncated"
	CauseReset            = "upstream_reset"
	CauseDeadFlow         = "upstream_dead_flow"
	CauseIdle             = "idle_timeout"
	CauseFirstToken       = "first_token_timeout"
	CauseTotal            = "total_timeout"
	CauseOverloaded       = "overloaded"     // no room for another request's buffers
	CauseStalled          = "buffer_stalled" // the app took nothing for too long
	CauseDrain            = "warmwire_drain"
	CauseMissingTerminal  = "missing_terminal"
	CauseErrorEvent       = "error_event"
	CauseBodyTooLarge     = "request_body_too_large"
	CauseInternal         = "internal_error"
	CauseAppUploadBroken  = "app_upload_truncated"
	CauseWebSocketDropped = "websocket_dropped"
)

// Phases are the stages of a request before the first token of its answer; a zero stage
// did not happen (a reused connection has no dns, connect or tls). With
// Record.Stream they sum to the request's duration exactly.
type Phases struct {
	Queue, DNS, Connect, TLS time.Duration
	Send                     time.Duration // with what we ourselves did before
	Wait                     time.Duration // for the whole head
	Retry                    time.Duration // attempts that were given up, and the pauses between
	FirstToken               time.Duration // from the head on; 0 = an answer without tokens
}

// head is what passed until the head was there.
func (p *Phases) head() time.Duration {
	return p.Queue + p.DNS + p.Connect + p.TLS + p.Send + p.Wait + p.Retry
}

// settle makes the stages before the head sum to total. Stages of a connection that was
// opened beside the wait for another are cut, the last first.
func (p *Phases) settle(total time.Duration) {
	over := p.head() - total
	if over <= 0 && p.Send == 0 { // it was never sent
		p.Queue -= over
		return
	}
	if over <= 0 {
		p.Send -= over
		return
	}
	for _, d := range [...]*time.Duration{&p.TLS, &p.Connect, &p.DNS, &p.Send, &p.Wait, &p.Retry, &p.Queue} {
		cut := min(over, *d)
		*d -= cut
		over -= cut
	}
}

// A Record describes one finished request. It holds nothing that could carry a
// secret: no path, header value or body.
type Record struct {
	ID            uint64
	Start         time.Time
	Duration      time.Duration
	Upstream      string // its name; "" for a host that is no upstream
	Tenant        string // its name; "" = there are none, or the caller is not known
	Mode          Mode
	AppProto      string // HTTP/1.0, HTTP/1.1 or HTTP/2.0
	UpstreamProto string
	Method        string
	Status        int // 0 = no head was sent
	Outcome       Outcome
	Cause         string
	BytesIn       int64 // body bytes from the app
	BytesOut      int64 // body bytes to the app
	Phases        Phases
	Parts         attribution.Parts   // of the time after them; of sockets and tunnels none
	Fault         attribution.Fault   // what the request suffered from most; "" = nothing that stands out
	Finding       attribution.Finding // how that is known
	Conn          uint64              // the upstream connection's number; 0 = unknown
	Reused        bool
	Resumes       int           // of the stream that the app came back to, or that broke and was continued
	Attempts      int           // how often a connection was asked for
	TTFT          time.Duration // 0 = no token seen
	PerChunk      time.Duration // (last-first)/(chunks-1); 0 = fewer than two chunks
	Chunks        int
	Gaps          dialect.Gaps // between them
	Stream        bool
	InputTokens   int64 // -1 = unknown
	OutputTokens  int64
	AppRetries    int    // what the SDK says it has tried before
	Trace         Trace  // from the app's own traceparent
	Operation     string // what is asked of a model API, see [dialect.Operation]; "" = something else
	TrailersLost  int
	Pauses        int // times in which a slow app kept its upstream waiting
}

// Hooks are told what happens; nil ones are skipped. They are called from the
// request's own goroutine, or one of its timers', and must not block.
type Hooks struct {
	RequestDone  func(*Record)
	StreamOpen   func(delta int, m Mode) // requests, tunnels and WebSockets that run
	ConnOpen     func(delta int)
	Malformed    func(status int, code string)
	Refused      func(reason string)
	Denied       func(Denial)                                     // why a caller was refused
	Charged      func(tenant string, tokens int64, estimate bool) // what an answer has cost
	AcceptFailed func(err error, pause time.Duration)
	Paused       func(upstream string) // an app was so slow that its upstream had to wait
	SessionEnds  func(SessionWarning)  // a realtime session ends soon, or has reached its limit
	Panicked     func(v any, stack []byte)

	Intercepted       func(result InterceptResult)       // what became of a tunnel to a listed host
	InterceptTrouble  func(host string, err error)       // a listed host has no certificate, or cannot be reached
	Distrusted        func(host string, until time.Time) // it is tunnelled untouched from now on
	ClientCertificate func(host string, until time.Time) // the same, because it wants the app's own
}
