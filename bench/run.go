// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// figures are what one round of one peer showed. Absolute: for the JSON output
// and for ratios.
type figures struct {
	FirstP50   float64 `json:"first_byte_p50_us"`
	FirstP99   float64 `json:"first_byte_p99_us"`
	RelayP50   float64 `json:"relay_p50_us"`
	RelayP99   float64 `json:"relay_p99_us"`
	PerSecond  float64 `json:"requests_per_second"`
	RequestCPU float64 `json:"cpu_us_per_request"` // of the proxy
	TokenCPU   float64 `json:"cpu_us_per_token"`   // of the proxy
	Cut        int     `json:"streams_cut"`
}

// memory is what one round of the memory steps showed, in bytes.
type memory struct {
	Idle  float64 `json:"rss_per_idle_stream"`
	Slow  float64 `json:"rss_per_slow_reader"`
	Ahead float64 `json:"read_ahead_per_slow_reader"`
}

// A round is a peer's run and the direct one that it alternated with.
type round struct {
	Peer   figures `json:"peer"`
	Direct figures `json:"direct"`
}

// A result is what one peer showed.
type result struct {
	spec    spec
	version string
	rounds  []round
	memory  []memory
}

// A bench is one comparison.
type bench struct {
	settings
	rack    *rack
	ca      []byte
	results []*result
	missing []spec // not installed
}

// newBench starts what every run needs: an upstream, and files for its proxies.
func newBench(ctx context.Context, s settings) (b *bench, cleanup func(), err error) {
	r, cleanup, err := newRack(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	b = &bench{settings: s, rack: r}
	if b.ca, err = os.ReadFile(r.ca); err != nil {
		cleanup()
		return nil, nil, err
	}
	return b, cleanup, nil
}

func run(ctx context.Context, s settings) error {
	start := time.Now()
	chosen, err := chosen(s.only)
	if err != nil {
		return err
	}
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	if err := b.compare(ctx, chosen); err != nil {
		return err
	}
	for n := range s.memory {
		for _, res := range b.results {
			if err := b.remember(ctx, res); err != nil {
				return fmt.Errorf("peer %s: memory: %w", res.spec.name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "bench: memory round %d of %d, %s\n", n+1, s.memory, time.Since(start).Round(time.Second))
	}
	return b.report(time.Since(start))
}

// compare starts all peers and alternates each with the direct run.
func (b *bench) compare(ctx context.Context, chosen []spec) error {
	var peers []*peer
	for _, sp := range chosen {
		p, err := b.rack.start(ctx, sp)
		if errors.Is(err, errMissing) {
			fmt.Fprintf(os.Stderr, "bench: peer %s left out: %v; apt-get install %s\n", sp.name, err, sp.debian)
			b.missing = append(b.missing, sp)
			continue
		}
		if err != nil {
			return fmt.Errorf("peer %s: %w", sp.name, err)
		}
		defer p.stop()
		peers = append(peers, p)
		b.results = append(b.results, &result{spec: sp, version: p.version})
	}
	direct := make(map[string]*peer) // by name; they come before what is compared with them
	start := time.Now()
	for n := range b.rounds {
		for i, p := range peers {
			reference, _ := p.kind.reference()
			if p.name == reference {
				direct[p.name] = p
				continue
			}
			one, err := b.alternate(ctx, p, direct[reference], n%2 == 1)
			if err != nil {
				return fmt.Errorf("peer %s: %w", p.name, err)
			}
			b.results[i].rounds = append(b.results[i].rounds, one)
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s\n", n+1, b.rounds, time.Since(start).Round(time.Second))
	}
	return nil
}

// alternate puts each load on the direct way and on the peer, one after the
// other. Every second round swaps the two, so that a drift of the machine
// favours neither.
func (b *bench) alternate(ctx context.Context, p, direct *peer, swap bool) (round, error) {
	var (
		out     round
		peers   = [2]*peer{direct, p}
		into    = [2]*figures{&out.Direct, &out.Peer}
		clients = [2]*client{direct.client(b.ca), p.client(b.ca)}
	)
	for _, c := range clients {
		defer c.close()
		if _, err := c.loop(ctx, b.conns, 50*time.Millisecond); err != nil { // connections and caches warm
			return out, err
		}
	}
	order := []int{0, 1}
	if swap {
		order = []int{1, 0}
	}
	for _, load := range []func(context.Context, *peer, *client, *figures) error{b.firstByte, b.perSecond, b.relay} {
		for _, i := range order {
			if err := load(ctx, peers[i], clients[i], into[i]); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

func (b *bench) firstByte(ctx context.Context, _ *peer, c *client, f *figures) error {
	h := histogram()
	err := c.calls(ctx, b.calls, h)
	f.FirstP50, f.FirstP99 = float64(h.ValueAtPercentile(50)), float64(h.ValueAtPercentile(99))
	return err
}

func (b *bench) perSecond(ctx context.Context, p *peer, c *client, f *figures) error {
	start := time.Now()
	var n int64
	used, err := cpuDuring(p, func() (err error) {
		n, err = c.loop(ctx, b.conns, b.loop)
		return err
	})
	f.PerSecond = float64(n) / time.Since(start).Seconds()
	f.RequestCPU = float64(used.Microseconds()) / float64(max(1, n))
	return err
}

func (b *bench) relay(ctx context.Context, p *peer, c *client, f *figures) error {
	h := histogram()
	var n int64
	used, err := cpuDuring(p, func() (err error) {
		n, f.Cut, err = c.tokens(ctx, b.settings, h)
		return err
	})
	f.RelayP50, f.RelayP99 = float64(h.ValueAtPercentile(50)), float64(h.ValueAtPercentile(99))
	f.TokenCPU = float64(used.Microseconds()) / float64(max(1, n))
	return err
}

// cpuDuring is what a peer's process used while f ran.
func cpuDuring(p *peer, f func() error) (time.Duration, error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return after - before, err
}

// remember measures memory, each of the two steps with a fresh process: one
// that has served a load before has room to spare, and would seem to need none.
func (b *bench) remember(ctx context.Context, res *result) error {
	var m memory
	if res.spec.start != nil {
		err := b.fresh(ctx, res.spec, func(p *peer) error {
			grown, err := grownBy(p, func() (func(), error) { return p.client(b.ca).hold(ctx, b.idle) })
			m.Idle = float64(grown) / float64(b.idle)
			return err
		})
		if err != nil {
			return fmt.Errorf("%d idle streams: %w", b.idle, err)
		}
	}
	for attempt := 1; ; attempt++ {
		err := b.slowReaders(ctx, res.spec, &m)
		if err == nil {
			break
		}
		if err = fmt.Errorf("%d slow readers: %w", b.slow, err); attempt == slowAttempts || ctx.Err() != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "bench: peer %s: once more: %v\n", res.spec.name, err)
	}
	res.memory = append(res.memory, m)
	return nil
}

// slowAttempts is how often the slow readers are tried: if one of them is cut,
// the rest cannot be told from it in what the upstream counted.
const slowAttempts = 3

func (b *bench) slowReaders(ctx context.Context, sp spec, m *memory) error {
	return b.fresh(ctx, sp, func(p *peer) error {
		var taken, read int64
		if err := b.nothingOpen(ctx); err != nil {
			return err
		}
		grown, err := grownBy(p, func() (end func(), err error) {
			if read, end, err = p.client(b.ca).narrowed().slow(ctx, b.slow, b.slowFor); err != nil {
				return nil, err
			}
			taken, _, err = b.taken(ctx)
			return end, err
		})
		m.Slow, m.Ahead = float64(grown)/float64(b.slow), float64(taken-read)/float64(b.slow)
		return err
	})
}

// fresh starts a peer, lets it serve a few calls, gives it to f and stops it.
func (b *bench) fresh(ctx context.Context, sp spec, f func(*peer) error) error {
	p, err := b.rack.start(ctx, sp)
	if err != nil {
		return err
	}
	defer p.stop()
	c := p.client(b.ca)
	defer c.close()
	if err := c.calls(ctx, 20, histogram()); err != nil {
		return err
	}
	return f(p)
}

// grownBy is how much a peer's resident memory grew by what f opened, and ends
// it.
func grownBy(p *peer, f func() (end func(), err error)) (int64, error) {
	before, err := p.rss()
	if err != nil {
		return 0, err
	}
	end, err := f()
	if end != nil {
		defer end()
	}
	if err != nil {
		return 0, err
	}
	after, err := p.rss()
	return after - before, err
}

// taken asks the upstream how many bytes for slow readers were taken from it
// since it was last asked, and how many of their answers are open.
func (b *bench) taken(ctx context.Context) (bytes, open int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.rack.plain+"/v1/taken", nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 100))
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(string(text), &bytes, &open)
	return bytes, open, err
}

// nothingOpen waits until no answer of an earlier step is open, so that none is
// counted twice.
func (b *bench) nothingOpen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		_, open, err := b.taken(ctx)
		if err != nil {
			return fmt.Errorf("answers of an earlier step are still open: %w", err)
		}
		if open == 0 {
			_, _, err = b.taken(ctx) // what the last one took
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
