// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Config is one measurement.
type Config struct {
	API     API
	Direct  Target
	Through *Target // nil measures Direct alone; else the legs take turns

	Model        string
	Prompt       string // sent as it is; if empty, PromptTokens words, others for each call
	PromptTokens int
	OutputTokens int // 0 leaves the length to the server

	Requests    int     // of each leg
	Concurrency int     // calls at a time, when Rate is 0
	Rate        float64 // arrivals a second over both legs, whatever the server does
	MaxInFlight int     // with Rate; a call that is due beyond is counted as not sent. 0 means 1000
	Seed        uint64

	Timeout time.Duration // of one call; 0 means 10 min, the usual one of SDKs
	TLS     TLSMode
	RootCAs *x509.CertPool // nil means the system's

	Dial func(ctx context.Context, network, address string) (net.Conn, error) // nil means TCP
	// Resolver looks names of the direct way up; nil means the system's.
	Resolver *Resolver
}

const maxRequests = 10_000_000

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	if c.Requests == 0 {
		c.Requests = 20
	}
	if c.Concurrency == 0 {
		c.Concurrency = 1
	}
	if c.PromptTokens == 0 {
		c.PromptTokens = 16
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 1000
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Minute
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Requests < 0 || c.Requests > maxRequests:
		return fmt.Errorf("requests must be between 1 and %d", maxRequests)
	case c.Concurrency < 0 || c.Concurrency > 10_000 || c.MaxInFlight < 0 || c.MaxInFlight > 10_000:
		return errors.New("at most 10000 calls can run at a time, and not fewer than one")
	case !(c.Rate >= 0 && c.Rate <= 100_000): // also not a number
		return errors.New("the rate must be above 0 and at most 100000 calls a second")
	case c.PromptTokens < 0 || c.PromptTokens > 4_000_000 || c.OutputTokens < 0:
		return errors.New("the number of tokens must not be negative, and that of the prompt not above 4000000")
	case c.Timeout < 0:
		return errors.New("the time-out must not be negative")
	}
	if _, err := ParseAPI(string(c.API)); err != nil {
		return err
	}
	for _, t := range c.targets() {
		if err := t.validate(c.API); err != nil {
			return err
		}
	}
	switch c.TLS {
	case TLSReuse, TLSFull, TLSResumed:
	default:
		return fmt.Errorf("unknown kind of handshake %q: want full or resumed", c.TLS)
	}
	if s := c.Direct.URL.Scheme; c.TLS != TLSReuse && s != "https" && s != "wss" {
		return fmt.Errorf("a TLS handshake needs an https address, this one is %s", s)
	}
	return nil
}

func (c Config) targets() []Target {
	if c.Through != nil {
		return []Target{c.Direct, *c.Through}
	}
	return []Target{c.Direct}
}

func (t Target) validate(api API) error {
	if t.URL == nil || t.URL.Host == "" {
		return errors.New("an address needs a scheme and a host, as in https://api.openai.com/v1/chat/completions")
	}
	switch t.URL.Scheme {
	case "http", "https":
		return nil
	case "ws", "wss":
		if api == Realtime || api == Responses {
			return nil
		}
		return fmt.Errorf("%s is not spoken over a WebSocket: use an http or https address", api)
	}
	return fmt.Errorf("unknown scheme %q: want http, https, ws or wss", t.URL.Scheme)
}

// A Runner makes the calls of one measurement.
type Runner struct {
	cfg     Config
	clients []*client
	report  func(Result)

	mu sync.Mutex // held while report runs, so that results come one at a time
}

// New returns a Runner that sends nothing until Run is called. It hands every
// result to report.
func New(cfg Config, report func(Result)) (*Runner, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Runner{cfg: cfg, report: report}
	for leg, t := range cfg.targets() {
		r.clients = append(r.clients, newClient(Leg(leg), t, &cfg))
	}
	return r, nil
}

// Total is the number of calls of all legs.
func (r *Runner) Total() int { return r.cfg.Requests * len(r.clients) }

// Run makes all calls and returns how long that took. When ctx ends it stops:
// calls under way end as [Stopped], and those that were not begun are not
// reported. Call it once.
func (r *Runner) Run(ctx context.Context) time.Duration {
	defer func() {
		for _, c := range r.clients {
			c.close()
		}
	}()
	if r.cfg.TLS == TLSResumed {
		for _, c := range r.clients {
			r.call(ctx, c, 0) // gets the session that the others resume; a failure shows in those
		}
	}
	start := time.Now()
	if r.cfg.Rate > 0 {
		r.open(ctx, start)
	} else {
		r.closed(ctx)
	}
	return time.Since(start)
}

// closed keeps Concurrency calls under way.
func (r *Runner) closed(ctx context.Context) {
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(r.cfg.Concurrency, r.Total()) {
		workers.Go(func() {
			for i := range next {
				r.tell(r.call(ctx, r.of(i), i))
			}
		})
	}
	for i := range r.Total() {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	workers.Wait()
}

// open begins each call when it is due, whatever became of those before.
func (r *Runner) open(ctx context.Context, start time.Time) {
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, r.cfg.MaxInFlight)
	timer := time.NewTimer(0)
	defer timer.Stop()
	i := 0
	for due := range Poisson(r.cfg.Rate, r.cfg.Seed) {
		if i == r.Total() {
			return
		}
		timer.Reset(time.Until(start.Add(due)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		n := i
		i++
		select {
		case slots <- struct{}{}:
		default:
			r.tell(Result{Leg: r.of(n).leg, Number: n, Outcome: NotSent, Reason: "too many calls in flight"})
			continue
		}
		calls.Go(func() {
			defer func() { <-slots }()
			r.tell(r.call(ctx, r.of(n), n))
		})
	}
}

// of is the client of call i: the legs take turns, so that a drift of the
// server or of this machine meets both.
func (r *Runner) of(i int) *client { return r.clients[i%len(r.clients)] }

func (r *Runner) tell(res Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(res)
}

func (r *Runner) call(ctx context.Context, c *client, i int) Result {
	q := question{model: r.cfg.Model, prompt: r.cfg.Prompt, outputTokens: r.cfg.OutputTokens}
	if q.prompt == "" {
		q.prompt = Prompt(r.cfg.PromptTokens, r.cfg.Seed, uint64(i))
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	return c.call(ctx, i, q)
}
