// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Sizes of the run with readers that take nothing any more.
const (
	stalledBytes = 200_000_000 // of each answer
	eagerBytes   = 8 << 20     // what those that stop have read before
	spoolBytes   = 32 << 20    // of each answer that is taken early
	spoolReaders = 20
	keepUp       = 20 // streams beside them that are read at once
)

// A stallSpec is a proxy with the bound that it was given.
type stallSpec struct {
	spec
	limit int64 // of its buffers; 0 = none
}

// A stalled is what one round of a stallSpec showed, in bytes.
type stalled struct {
	Base   int64 `json:"rss_base"`   // idle, with warm connections
	Steady int64 `json:"rss_steady"` // with the readers open
	Peak   int64 `json:"rss_peak"`   // VmHWM
	Taken  int64 `json:"taken_per_reader"`

	AloneP99  float64 `json:"alone_p99_us"` // lateness of the streams that keep up
	BesideP99 float64 `json:"beside_p99_us"`
	Tokens    float64 `json:"tokens_beside_to_alone"`
	Cut       int     `json:"streams_cut"`
}

// A spooled is what one round showed of answers that are taken early.
type spooled struct {
	Base, Peak int64
	Done       time.Duration // until the upstream had given all; 0 = it waited
	Equal      int           // answers that arrived byte for byte
}

// stalledSpecs are the rows; eager says that readers read a part before they stop.
func stalledSpecs() []stallSpec {
	own := func(name, memory, protocols, pool, how string, limit int64) stallSpec {
		return stallSpec{spec{name: name, kind: reverse, how: how, start: startBounded(memory, protocols, pool, "")}, limit}
	}
	return []stallSpec{
		own("warmwire 8MiB", "8MiB", "h2", "", "`limits.memory: 8MiB`, HTTP/2 upstream", 8<<20),
		own("warmwire 64MiB", "64MiB", "h2", "", "`limits.memory: 64MiB`, HTTP/2 upstream", 64<<20),
		own("warmwire 64MiB, one connection", "64MiB", "h2", "max_connections: 1, max_streams: 1000", "the same with all streams on one connection", 64<<20),
		own("warmwire-h1 64MiB", "64MiB", "http/1.1", "", "the same with HTTP/1.1 upstream", 64<<20),
		own("warmwire 256MiB", "256MiB", "h2", "", "its default, HTTP/2 upstream", 256<<20),
		own("warmwire-h1 256MiB", "256MiB", "http/1.1", "", "its default, HTTP/1.1 upstream", 256<<20),
		{spec{name: "stock", kind: reverse, how: "`httputil.ReverseProxy`, HTTP/2 upstream", start: startStock(false)}, 0},
		{spec{name: "stock-h1", kind: reverse, how: "the same with HTTP/1.1 upstream", start: startStock(true)}, 0},
		{spec{name: "nginx", kind: reverse, debian: "nginx", how: "`proxy_buffering off`", start: startNginx}, 0},
		{spec{name: "nginx, buffering", kind: reverse, debian: "nginx", how: "`proxy_buffering on`, `proxy_max_temp_file_size 64m`", start: startNginxBuffering}, 0},
	}
}

// startBounded starts Warmwire with limits.memory and further settings of its
// upstream's pool and buffer.
func startBounded(memory, protocols, pool, buffer string) starter {
	if pool == "" {
		pool = "max_connections: 100, max_h1_connections: 8000"
	}
	return func(r *rack, ctx context.Context, p *peer, address string) error {
		p.base += "/bench"
		return r.runWarmwire(ctx, p, address, fmt.Sprintf("limits: {memory: %s}\nupstreams:\n"+
			"  bench: {url: 'https://%s', dialect: openai, protocols: [%s], tls: {ca_file: %s}, pool: {%s}, buffer: {%s}}\n",
			memory, r.upstream, protocols, r.ca, pool, buffer))
	}
}

// runStalled makes the tables about readers that take nothing, that take little in
// a small container, and whose answers are taken early.
func runStalled(ctx context.Context, s settings) error {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	start := time.Now()
	rep := newStalledReport(s)
	for n := range s.memory {
		for _, sp := range stalledSpecs() {
			if !strings.HasPrefix(sp.name, s.only) {
				continue
			}
			for _, eager := range []bool{false, true} {
				one, err := b.stall(ctx, sp, eager)
				if err = b.absent(sp.spec, err); err != nil {
					return fmt.Errorf("%s: %d readers that stop: %w", sp.name, s.stalled, err)
				}
				rep.add(sp, eager, one)
			}
		}
		for _, sp := range spoolSpecs() {
			one, err := b.takeEarly(ctx, sp)
			if err = b.absent(sp, err); err != nil {
				return fmt.Errorf("%s: %d answers taken early: %w", sp.name, spoolReaders, err)
			}
			rep.addSpooled(sp, one)
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s\n", n+1, s.memory, time.Since(start).Round(time.Second))
	}
	if rep.small, err = b.smallContainer(ctx); err != nil {
		return err
	}
	return rep.write(time.Since(start))
}

// absent turns the error of a peer that is not installed into none.
func (b *bench) absent(sp spec, err error) error {
	if errors.Is(err, errMissing) {
		fmt.Fprintf(os.Stderr, "bench: %s left out: %v\n", sp.name, err)
		return nil
	}
	return err
}

// stall weighs one fresh process before and with the readers, and reads other streams
// through it at both times.
func (b *bench) stall(ctx context.Context, sp stallSpec, eager bool) (*stalled, error) {
	if err := b.nothingOpen(ctx); err != nil {
		return nil, err
	}
	out := new(stalled)
	err := b.fresh(ctx, sp.spec, func(p *peer) error {
		c, slow := p.client(b.ca), p.client(b.ca).narrowed()
		defer c.close()
		load := b.settings
		load.streams = keepUp
		if _, _, err := c.tokens(ctx, load, histogram()); err != nil { // its connections are warm now
			return err
		}
		alone, err := b.late(ctx, c, load, out)
		if err != nil {
			return err
		}
		if out.Base, err = p.rss(); err != nil {
			return err
		}
		read := 0
		if eager {
			read = eagerBytes
		}
		end, err := slow.stop(ctx, b.stalled, read)
		if err != nil {
			return err
		}
		defer end()
		taken, err := b.settled(ctx)
		if err != nil {
			return err
		}
		out.Taken = (taken - int64(b.stalled)*int64(read)) / int64(b.stalled)
		out.AloneP99 = alone.p99
		beside, err := b.late(ctx, c, load, out)
		if err != nil {
			return err
		}
		out.BesideP99, out.Tokens = beside.p99, beside.tokens/alone.tokens
		if out.Steady, err = p.rss(); err != nil {
			return err
		}
		out.Peak, err = peak(p.cmd.Process.Pid)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// A lateness is how late tokens came, and how many.
type lateness struct{ p99, tokens float64 }

func (b *bench) late(ctx context.Context, c *client, load settings, out *stalled) (lateness, error) {
	h := histogram()
	n, cut, err := c.tokens(ctx, load, h)
	out.Cut += cut
	return lateness{float64(h.ValueAtPercentile(99)), float64(n)}, err
}

// stop opens n answers, reads so many bytes of each as fast as they come, and then
// none. They stay open until end.
func (c *client) stop(ctx context.Context, n, read int) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	for range n {
		group.Go(func() error {
			resp, err := c.get(ctx, fmt.Sprintf("/v1/big?bytes=%d", stalledBytes)) // open until cancel
			if err != nil {
				return err
			}
			_, err = io.CopyN(io.Discard, resp.Body, int64(read))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		cancel()
		return nil, err
	}
	return cancel, nil
}

// settled waits until the upstream is rid of no further byte for a while, and returns
// how many it gave.
func (b *bench) settled(ctx context.Context) (taken int64, err error) {
	const quiet = 5 // looks in a row
	for still := 0; still < quiet; {
		n, _, err := b.taken(ctx)
		if err != nil {
			return 0, err
		}
		if taken += n; n > 0 {
			still = 0
		} else {
			still++
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return taken, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// spoolSpecs are those that take an answer before its reader does.
func spoolSpecs() []spec {
	return []spec{
		{name: "warmwire, pause", kind: reverse, how: "`limits.memory: 64MiB`", start: startBounded("64MiB", "h2", "", "")},
		{name: "warmwire, spool", kind: reverse, how: "the same, `buffer.policy: spool`", start: startBounded("64MiB", "h2", "", "policy: spool")},
		{name: "nginx, buffering", kind: reverse, debian: "nginx", how: "`proxy_buffering on`, `proxy_max_temp_file_size 64m`", start: startNginxBuffering},
	}
}

// takeEarly has readers that begin to read when the upstream is done, or has shown that
// it waits, and then compares all bytes.
func (b *bench) takeEarly(ctx context.Context, sp spec) (*spooled, error) {
	if err := b.nothingOpen(ctx); err != nil {
		return nil, err
	}
	out := new(spooled)
	err := b.fresh(ctx, sp, func(p *peer) (err error) {
		if out.Base, err = p.rss(); err != nil {
			return err
		}
		c := p.client(b.ca).narrowed()
		defer c.close()
		begun := time.Now()
		var answers []*http.Response
		for range spoolReaders {
			resp, err := c.get(ctx, fmt.Sprintf("/v1/big?bytes=%d", spoolBytes))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			answers = append(answers, resp)
		}
		const patience = 10 * time.Second
		for time.Since(begun) < patience {
			_, open, err := b.taken(ctx)
			if err != nil {
				return err
			}
			if open == 0 {
				out.Done = time.Since(begun)
				break
			}
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
		want := bigSum(spoolBytes)
		for _, resp := range answers {
			h := sha256.New()
			if _, err := io.Copy(h, resp.Body); err == nil && sum(h) == want {
				out.Equal++
			}
		}
		out.Peak, err = peak(p.cmd.Process.Pid)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func sum(h hash.Hash) (out [sha256.Size]byte) {
	h.Sum(out[:0])
	return out
}

// bigSum is the SHA-256 of what the upstream sends as n bytes.
func bigSum(n int) [sha256.Size]byte {
	h := sha256.New()
	_ = writeBig(h, n)
	return sum(h)
}
