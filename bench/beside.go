// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// A pair is two builds of Warmwire with the same configuration.
type pair struct {
	name     string
	protocol string
	same     bool // both are the new build: how far its ratios are from 1 is the noise

	rounds []round // Direct is the old build
	idle   []float64
}

// runBeside alternates another build of Warmwire with this one, each load on both, and
// prints ratios of new to old.
func runBeside(ctx context.Context, s settings) error {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	start := time.Now()
	pairs := []*pair{
		{name: "HTTP/2 upstream", protocol: "h2"}, {name: "HTTP/1.1 upstream", protocol: "http/1.1"},
		{name: "control: new over new, HTTP/2 upstream", protocol: "h2", same: true},
	}
	for n := range s.rounds {
		for _, p := range pairs {
			if err := b.besides(ctx, p, n%2 == 1); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s\n", n+1, s.rounds, time.Since(start).Round(time.Second))
	}
	return b.besideTable(os.Stdout, pairs, time.Since(start))
}

// builds are the specs of the new and the old one.
func (b *bench) builds(p *pair) [2]spec {
	fresh := spec{name: "warmwire", kind: reverse, start: startWarmwire("[" + p.protocol + "]")}
	old := spec{name: "warmwire-before", kind: reverse, start: func(r *rack, ctx context.Context, p2 *peer, address string) error {
		other := *r
		if !p.same {
			other.warmwire = b.beside
		}
		return fresh.start(&other, ctx, p2, address)
	}}
	return [2]spec{fresh, old}
}

// besides runs one round of a pair: both with fresh processes for the times and the
// costs, and once more for memory.
func (b *bench) besides(ctx context.Context, p *pair, swap bool) error {
	specs := b.builds(p)
	err := b.fresh(ctx, specs[0], func(fresh *peer) error {
		return b.fresh(ctx, specs[1], func(old *peer) error {
			one, err := b.alternate(ctx, fresh, old, swap)
			p.rounds = append(p.rounds, one)
			return err
		})
	})
	if err != nil {
		return err
	}
	var grown [2]int64
	for i, sp := range specs {
		err := b.fresh(ctx, sp, func(one *peer) (err error) {
			grown[i], err = grownBy(one, func() (func(), error) { return one.client(b.ca).hold(ctx, b.idle) })
			return err
		})
		if err != nil {
			return err
		}
	}
	p.idle = append(p.idle, float64(grown[0])/float64(grown[1]))
	return nil
}

func (b *bench) besideTable(out io.Writer, pairs []*pair, took time.Duration) error {
	fmt.Fprintf(out, "%s, %s, %s/%s, %d cores, %s; %d rounds: %d calls, %s of closed loop over %d connections, %d streams at %d tokens/s for %s, %d idle streams; new ÷ old, medians (least–most).\n\n",
		time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), took.Round(time.Second), b.rounds, b.calls, b.loop,
		b.conns, b.streams, b.rate, b.tokens, b.idle)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "", "TTFT p50", "TTFT p99", "relay p50", "relay p99", "requests/s", "CPU per request", "CPU per token", "memory per idle stream")
	line(w, slices.Repeat([]string{"---"}, 9)...)
	for _, p := range pairs {
		ratios := (&result{rounds: p.rounds}).timeRatios
		cells := []string{p.name}
		for _, figure := range []func(figures) float64{
			func(f figures) float64 { return f.FirstP50 }, func(f figures) float64 { return f.FirstP99 },
			func(f figures) float64 { return f.RelayP50 }, func(f figures) float64 { return f.RelayP99 },
			func(f figures) float64 { return f.PerSecond },
			func(f figures) float64 { return f.RequestCPU }, func(f figures) float64 { return f.TokenCPU },
		} {
			cells = append(cells, cell(ratios(figure), "%.2f"))
		}
		line(w, append(cells, cell(p.idle, "%.2f"))...)
	}
	return w.Flush()
}
