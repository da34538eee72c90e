// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/warmwire/warmwire/transport/hints"
)

// HandshakeConfig is how long a WebSocket handshake is tried again. The zero value is
// the default.
type HandshakeConfig struct {
	BaseDelay time.Duration // the widest first wait; doubled for each attempt; 0 means 250 ms
	MaxDelay  time.Duration // the widest wait; 0 means 8 s
	Limit     time.Duration // from the first attempt to the beginning of the last; 0 means 1 min

	OnAttempt func(Decision) // is told of every decision; nil = nobody. It must not block.
	Rand      func() float64 // in [0, 1); nil means math/rand/v2
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c HandshakeConfig) WithDefaults() HandshakeConfig {
	c.BaseDelay = cmp.Or(c.BaseDelay, 250*time.Millisecond)
	c.MaxDelay = cmp.Or(c.MaxDelay, 8*time.Second)
	c.Limit = cmp.Or(c.Limit, time.Minute)
	if c.OnAttempt == nil {
		c.OnAttempt = func(Decision) {}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// Validate reports a setting that cannot work.
func (c HandshakeConfig) Validate() error {
	if c.BaseDelay < 0 || c.MaxDelay < 0 || c.Limit < 0 {
		return fmt.Errorf("retry: a negative time: base delay %v, longest delay %v, limit %v", c.BaseDelay, c.MaxDelay, c.Limit)
	}
	if d := c.WithDefaults(); d.BaseDelay > d.MaxDelay {
		return fmt.Errorf("retry: base delay %v is longer than the longest delay %v", d.BaseDelay, d.MaxDelay)
	}
	return nil
}

// Handshakes is a layer that makes WebSocket handshakes again until the upstream
// accepts one, the app leaves or the limit is reached: behind an app that has not been
// answered yet, and so cannot have sent a message. Whether the failed attempt reached
// the upstream does not matter: a session in which nothing was said has done nothing.
// Everything else goes through it untouched. It starts nothing and is safe for
// concurrent use.
//
// Tried again is what a connection can die of, and the answers of a server or balancer
// that has no room just now: 429, 502, 503, 504 and 529, not before the date it names.
// Not tried again: a refused certificate, an unknown name, an answer that is none, a
// full queue of Warmwire's own, every other answer, and one that forbids it or asks for more than what is left of the limit; these the app gets as they came.
type Handshakes struct {
	next http.RoundTripper
	cfg  HandshakeConfig
}

// NewHandshakes returns a layer around next.
func NewHandshakes(next http.RoundTripper, cfg HandshakeConfig) (*Handshakes, error) {
	if next == nil {
		return nil, errors.New("retry: there is no way out to send with")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Handshakes{next: next, cfg: cfg.WithDefaults()}, nil
}

// RoundTrip sends req, and again if it is a handshake that failed.
func (h *Handshakes) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header["Upgrade"] == nil || req.Body != nil && req.Body != http.NoBody {
		return h.next.RoundTrip(req)
	}
	begun := time.Now()
	for attempt := 1; ; attempt++ {
		resp, err := h.next.RoundTrip(req)
		now := time.Now()
		o, again := judgeHandshake(resp, err, now)
		if o.reason == "" {
			return resp, err
		}
		verdict, wait := h.decide(req.Context(), o, again, attempt, h.cfg.Limit-now.Sub(begun))
		h.cfg.OnAttempt(Decision{Reason: o.reason, Verdict: verdict, Attempt: attempt, Status: o.status, Wait: wait})
		if verdict != Retried {
			return resp, err
		}
		if resp != nil {
			discard(resp, min(wait, drainTime))
		}
		if lost := sleep(req.Context(), wait-time.Since(now)); lost != nil {
			return nil, cmp.Or(err, lost)
		}
	}
}

// judgeHandshake names the class of what came of a handshake, and says whether another
// one may fare better. No reason: it succeeded, or was refused for good.
func judgeHandshake(resp *http.Response, err error, now time.Time) (o outcome, again bool) {
	if err == nil {
		switch resp.StatusCode {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, 529:
			o = outcome{reason: Answered, status: resp.StatusCode, no: strings.EqualFold(resp.Header.Get("X-Should-Retry"), "false")}
			if o.asked, o.hint = hints.Asked(resp.StatusCode, resp.Header, now); o.hint {
				o.reason = TryLater
			}
			return o, true
		}
		return outcome{}, false
	}
	var f fault
	switch {
	case !errors.As(err, &f):
		if brokenPipe(err) {
			return outcome{reason: CutBefore}, true
		}
		return outcome{reason: Unknown}, false
	case hopeless(f):
		return outcome{reason: Hopeless}, false
	case f.Timeout():
		return outcome{reason: Late}, true
	case !f.RequestSent():
		return outcome{reason: Unsent}, true
	}
	return outcome{reason: CutBefore}, true
}

// decide says whether there is another attempt within what is left of the limit.
func (h *Handshakes) decide(ctx context.Context, o outcome, again bool, attempt int, left time.Duration) (Verdict, time.Duration) {
	switch {
	case ctx.Err() != nil:
		return AppGone, 0
	case !again:
		return Disabled, 0
	case o.no:
		return Forbidden, 0
	case o.asked > 0 && o.asked >= left:
		return TooLong, 0
	}
	widest := min(h.cfg.BaseDelay<<min(attempt-1, 16), h.cfg.MaxDelay)
	wait := o.asked + time.Duration(h.cfg.Rand()*float64(widest))
	if wait >= left {
		return Exhausted, 0
	}
	return Retried, wait
}
