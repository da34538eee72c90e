// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// peerNames in the order of the table; direct is the reference of the first
// figure, stock of the others.
var peerNames = []string{"direct", "stock", "stock-h1", "nginx", "haproxy", "warmwire", "warmwire-h1"}

// A result is what one peer showed.
type result struct {
	peer    *peer
	first   *hdrhistogram.Histogram // time to the first body byte, µs
	relay   *hdrhistogram.Histogram // a token's way, µs
	cpu     time.Duration           // of the proxy while it relayed tokens
	tokens  int64
	cut     int   // streams that broke off
	perIdle int64 // bytes of RSS an idle open stream
}

func run(ctx context.Context, s settings) error {
	r, cleanup, err := newRack(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	ca, err := os.ReadFile(r.ca)
	if err != nil {
		return err
	}
	var results []*result
	for _, name := range peerNames {
		if s.only != "" && name != "direct" && !slices.Contains(strings.Split(s.only, ","), name) {
			continue
		}
		p, err := r.startPeer(ctx, name, s)
		if errors.Is(err, errMissing) {
			fmt.Fprintf(os.Stderr, "bench: peer %s left out: %v\n", name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("peer %s: %w", name, err)
		}
		defer p.stop()
		results = append(results, &result{peer: p, first: histogram(), relay: histogram()})
	}
	for _, step := range []func(context.Context, settings, []byte, []*result) error{measureCalls, measureTokens, measureIdle} {
		if err := step(ctx, s, ca, results); err != nil {
			return err
		}
	}
	return printTable(s, results)
}

func newRack(ctx context.Context) (*rack, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "warmwire-bench-")
	if err != nil {
		return nil, nil, err
	}
	r := &rack{dir: dir, ca: filepath.Join(dir, "ca.pem"), self: self}
	cmd, addr, err := r.spawn(ctx, "-role=upstream", "-ca="+r.ca)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	r.upstream = strings.Replace(addr, "127.0.0.1", "localhost", 1)
	up := &peer{cmd: cmd}
	return r, func() { up.stop(); _ = os.RemoveAll(dir) }, nil
}

// measureCalls alternates between the peers, so that a drift of the machine
// meets all of them.
func measureCalls(ctx context.Context, s settings, ca []byte, results []*result) error {
	clients := make([]*client, len(results))
	for i, res := range results {
		clients[i] = newClient(res.peer.base, ca)
		if err := clients[i].calls(ctx, 20, histogram()); err != nil { // connections and caches warm
			return fmt.Errorf("peer %s: %w", res.peer.name, err)
		}
	}
	for range s.rounds {
		for i, res := range results {
			if err := clients[i].calls(ctx, s.calls, res.first); err != nil {
				return fmt.Errorf("peer %s: %w", res.peer.name, err)
			}
		}
	}
	return nil
}

// tokenRounds is how often the token streams of each peer alternate.
const tokenRounds = 2

func measureTokens(ctx context.Context, s settings, ca []byte, results []*result) error {
	for range tokenRounds {
		for _, res := range results {
			before, err := cpuOf(res.peer)
			if err != nil {
				return err
			}
			n, cut, err := newClient(res.peer.base, ca).tokens(ctx, s, res.relay)
			if err != nil {
				return fmt.Errorf("peer %s: %w", res.peer.name, err)
			}
			after, err := cpuOf(res.peer)
			if err != nil {
				return err
			}
			res.cpu += after - before
			res.tokens += n
			res.cut += cut
		}
	}
	return nil
}

func measureIdle(ctx context.Context, s settings, ca []byte, results []*result) error {
	for _, res := range results {
		if res.peer.cmd == nil {
			continue
		}
		pid := res.peer.cmd.Process.Pid
		before, err := rss(pid)
		if err != nil {
			return err
		}
		end, err := newClient(res.peer.base, ca).hold(ctx, s.idle)
		if err != nil {
			return fmt.Errorf("peer %s: %d idle streams: %w", res.peer.name, s.idle, err)
		}
		after, err := rss(pid)
		end()
		if err != nil {
			return err
		}
		res.perIdle = (after - before) / int64(s.idle)
	}
	return nil
}

func cpuOf(p *peer) (time.Duration, error) {
	if p.cmd == nil {
		return 0, nil
	}
	return cpuTime(p.cmd.Process.Pid)
}

func printTable(s settings, results []*result) error {
	out := io.Writer(os.Stdout)
	if s.out != "" {
		f, err := os.Create(s.out)
		if err != nil {
			return err
		}
		defer f.Close()
		out = io.MultiWriter(out, f)
	}
	direct := results[0]
	stock := direct
	for _, r := range results {
		if r.peer.name == "stock" {
			stock = r
		}
	}
	if s.out != "" {
		fmt.Fprintf(out, "# Benchmarks\n\nMade by `make bench`, on loopback, all peers in one run before the same TLS upstream; ratios count, not times. "+
			"TTFB is the time to the first body byte of a short call, relay a token's way from the upstream's write to the client's read, "+
			"both through a client that keeps its connections.\n\n")
	}
	fmt.Fprintf(out, "%s, %s, %d cores; %d calls a peer, %d streams at %d tokens/s, %d idle streams\n\n", time.Now().Format(time.DateOnly),
		runtime.Version(), runtime.NumCPU(), s.rounds*s.calls, s.streams, s.rate, s.idle)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| peer\t| TTFB p50, × direct\t| TTFB p99, × direct\t| relay p50, ms\t| relay p99, ms\t| CPU ms per 1000 tokens\t| × stock\t| KiB per idle stream\t| streams cut\t| how\t|")
	fmt.Fprintln(w, "| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t|")
	for _, r := range results {
		fmt.Fprintf(w, "| %s\t| %.2f\t| %.2f\t| %.2f\t| %.2f\t| %s\t| %s\t| %s\t| %d of %d\t| %s\t|\n", r.peer.name,
			ratio(r.first, direct.first, 50), ratio(r.first, direct.first, 99),
			float64(r.relay.ValueAtPercentile(50))/1e3, float64(r.relay.ValueAtPercentile(99))/1e3,
			perThousand(r), overStock(r, stock), idle(r), r.cut, tokenRounds*s.streams, r.peer.note)
	}
	return w.Flush()
}

func ratio(a, b *hdrhistogram.Histogram, p float64) float64 {
	return float64(a.ValueAtPercentile(p)) / float64(max(1, b.ValueAtPercentile(p)))
}

func cpuPerThousand(r *result) float64 {
	return float64(r.cpu.Microseconds()) / float64(max(1, r.tokens))
}

func perThousand(r *result) string {
	if r.peer.cmd == nil {
		return "–"
	}
	return fmt.Sprintf("%.1f", cpuPerThousand(r))
}

func overStock(r, stock *result) string {
	if r.peer.cmd == nil || stock.peer.cmd == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f", cpuPerThousand(r)/cpuPerThousand(stock))
}

func idle(r *result) string {
	if r.peer.cmd == nil {
		return "–"
	}
	return fmt.Sprintf("%.1f", float64(r.perIdle)/1024)
}
