// SPDX-License-Identifier: Apache-2.0

// Command bench compares Warmwire with other proxies on loopback, in one run:
// time to first token, relay delay per token, requests per second, CPU per
// token and request, memory per open stream, and what a slow reader costs.
//
// Each peer is a process of its own. Every run of a peer alternates with a run
// of the same load without a proxy, in several rounds; what the report holds is
// the median of the rounds' ratios with their spread, because absolute times
// are the machine's. Those are in the JSON output only.
//
// Peers come in two kinds with a reference each. Reverse proxies reach a TLS
// upstream: the stock httputil.ReverseProxy, nginx, haproxy, caddy, Warmwire.
// Forward proxies are asked for a plain HTTP URL: squid, tinyproxy, and the
// stock proxy and Warmwire asked the same way. A peer that is not installed is
// named in the report, not skipped silently. "control" is a second client
// without a proxy: how far its ratios are from 1 is the machine's noise.
//
// It installs nothing, listens and dials on loopback only, and stops what it
// started by process id. It needs Linux's /proc.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// settings size a run. The short form is for CI: it shows that the harness
// works, its figures are noise.
type settings struct {
	rounds   int           // alternations of each peer with direct
	memory   int           // rounds of the two memory steps, each with fresh processes
	calls    int           // sequential calls a round
	loop     time.Duration // of the closed loop
	conns    int           // connections of the closed loop
	streams  int           // concurrent token streams
	rate     int           // tokens a second and stream
	tokens   time.Duration // of the token streams
	idle     int           // open idle streams
	slow     int           // slow readers
	slowFor  time.Duration // how long they read
	warmwire string        // path of the binary
	out      string        // Markdown file; "" = standard output only
	json     string        // JSON file with the absolute figures; "" = none
	only     string        // peers, comma-separated; "" = all
	stalled  int           // readers that stop; 0 = another run

	retries   bool          // the study's retry experiment instead
	callRate  int           // its calls a second
	callFor   time.Duration // of each of its rows, and round
	outageFor time.Duration

	twice      int           // faulted calls instead; 0 = another run
	mock       int           // faulted calls inside a lab instead; 0 = another run
	sockets    int           // open WebSockets instead; 0 = another run
	socketsFor time.Duration // how long they are idle

	intercepted bool // the ways of an intercepted host instead

	neighbours bool          // the study's experiment on tenants instead
	quietFor   time.Duration // of each of its rounds
	burstEvery time.Duration
	burstCount int

	observed    bool          // what it costs to be looked at instead
	observedFor time.Duration // of each quarter of its rounds

	beside string // another build of Warmwire to compare with instead; "" = another run
}

// longest bounds a whole run; one takes about ten minutes.
const longest = 25 * time.Minute

func main() {
	role := flag.String("role", "", "internal: the process to be (upstream, stock)")
	target := flag.String("target", "", "internal: upstream of a role; empty = forward proxy")
	h1 := flag.Bool("h1", false, "internal: HTTP/1.1 to the upstream")
	caFile := flag.String("ca", "", "internal: CA of the upstream")
	short := flag.Bool("short", false, "a quick run that shows that the harness works")
	var s settings
	flag.StringVar(&s.warmwire, "warmwire", "bin/warmwire", "the Warmwire `binary`")
	flag.StringVar(&s.out, "out", "", "also write the report to this Markdown `file`")
	flag.StringVar(&s.json, "json", "", "write every round's absolute figures to this `file`")
	flag.StringVar(&s.only, "only", "", "comma-separated `peers` to run; the direct ones always do; of -stalled what the rows begin with")
	flag.IntVar(&s.stalled, "stalled", 0, "instead: what so many `readers` that stop reading cost; docs/buffers.md has it with 100")
	flag.BoolVar(&s.retries, "retries", false, "instead: who tries again after errors, and what that costs; docs/retries.md has it")
	flag.IntVar(&s.twice, "twice", 0, "instead: so many `calls` to an upstream that fails in every way, and which it executed twice; docs/retries.md has it with 100000")
	flag.IntVar(&s.mock, "mock", 0, "instead, as the command of warmwire lab run: so many faulted `calls` over its network")
	flag.IntVar(&s.sockets, "sockets", 0, "instead: what so many open `WebSockets` cost on which nobody says anything, up to 9900; docs/heartbeats.md has it")
	flag.BoolVar(&s.intercepted, "intercepted", false, "instead: calls through an intercepted tunnel beside base URL, a blind tunnel and mitmproxy; docs/interception.md has it")
	flag.BoolVar(&s.neighbours, "neighbours", false, "instead: what a burst of one tenant does to others; docs/priorities.md has it")
	flag.BoolVar(&s.observed, "observed", false, "instead: what scrapes, an open dashboard and Server-Timing cost at 5000 calls a second; docs/latency.md has it")
	flag.StringVar(&s.beside, "beside", "", "instead: this Warmwire over the one in `file`, from before a change")
	callRate := flag.Int("rate", 0, "`calls` a second of -retries; 0 = as the run has them")
	rounds := flag.Int("rounds", 0, "`rounds` of -stalled, -retries, -neighbours, -intercepted, -observed and -beside; 0 = as the run has them")
	idle := flag.Int("idle", 0, "open idle `streams` of the memory step, up to 9900; 0 = as the run has them")
	flag.Parse()
	s.size(*short)
	if *idle > 0 {
		s.idle = min(*idle, 9900) // Warmwire's limits.connections is 10000
	}
	if *callRate > 0 {
		s.callRate = *callRate
	}
	if *rounds > 0 {
		s.rounds, s.memory = *rounds, *rounds
	}

	if s.beside != "" {
		path, err := filepath.Abs(s.beside)
		if err != nil {
			log.Fatal("bench: ", err)
		}
		s.beside = path
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	var err error
	switch *role {
	case "":
		err = s.run(ctx)
	case "upstream":
		err = runUpstream(ctx, *caFile)
	case "stock":
		err = runStock(ctx, *target, *caFile, *h1)
	default:
		err = fmt.Errorf("unknown role %q", *role)
	}
	if err != nil {
		log.Fatal("bench: ", err)
	}
}

// run makes the comparison, or what was asked for instead.
func (s settings) run(ctx context.Context) error {
	switch {
	case s.stalled > 0:
		return runStalled(ctx, s)
	case s.retries:
		return runRetries(ctx, s)
	case s.twice > 0:
		return runTwice(ctx, s)
	case s.mock > 0:
		return runMock(ctx, s)
	case s.sockets > 0:
		return runSockets(ctx, s)
	case s.intercepted:
		return runIntercepted(ctx, s)
	case s.neighbours:
		return runNeighbours(ctx, s)
	case s.observed:
		return runObserved(ctx, s)
	case s.beside != "":
		return runBeside(ctx, s)
	}
	return run(ctx, s)
}

func (s *settings) size(short bool) {
	s.rounds, s.memory, s.conns = 5, 3, 32
	s.calls, s.loop = 300, time.Second
	s.streams, s.rate, s.tokens = 100, 50, 1500*time.Millisecond
	s.idle, s.slow, s.slowFor = 1000, 20, 3*time.Second
	s.sockets, s.socketsFor = min(s.sockets, 9900), time.Minute // Warmwire's limits.connections is 10000
	s.callRate, s.callFor, s.outageFor = 1000, 5*time.Second, time.Minute
	s.observedFor = 6 * time.Second
	s.quietFor, s.burstEvery, s.burstCount = 30*time.Second, 9*time.Second, 6
	if short {
		s.observedFor = 300 * time.Millisecond
		s.quietFor, s.burstEvery, s.burstCount = time.Second, 4*time.Second, 1
		s.socketsFor = time.Second
		s.callRate, s.callFor, s.outageFor = 100, 500*time.Millisecond, time.Second
		s.rounds, s.memory = 2, 1
		s.calls, s.loop = 30, 150*time.Millisecond
		s.streams, s.tokens = 10, 200*time.Millisecond
		s.idle, s.slow, s.slowFor = 50, 4, 300*time.Millisecond
	}
}
