// SPDX-License-Identifier: Apache-2.0

// Command bench compares Warmwire with other proxies on loopback, in one run:
// added time to first byte, relay delay per token, CPU per 1000 tokens and
// memory per open stream. Each peer is a process of its own; peers alternate
// with direct runs, and what is quoted are ratios, since absolute times are the
// machine's.
//
// Peers: direct (no proxy), stock (httputil.ReverseProxy with FlushInterval -1,
// built in this file's package), nginx and others from Debian where installed.
// A peer that is missing is named, not skipped silently.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"
)

// settings size a run. The short form is for CI: it shows that the harness
// works, its figures are noise.
type settings struct {
	rounds   int           // alternations between peers
	calls    int           // sequential calls a round and peer
	streams  int           // concurrent token streams
	rate     int           // tokens a second and stream
	duration time.Duration // of the token streams
	idle     int           // open idle streams
	warmwire string        // path of the binary
	out      string        // Markdown file; "" = standard output only
	only     string        // peers, comma-separated; "" = all
}

func main() {
	role := flag.String("role", "", "internal: the process to be (upstream, stock)")
	listen := flag.String("listen", "127.0.0.1:0", "internal: address of a role")
	target := flag.String("target", "", "internal: upstream of a role")
	h1 := flag.Bool("h1", false, "internal: HTTP/1.1 to the upstream")
	caFile := flag.String("ca", "", "internal: CA of the upstream")
	short := flag.Bool("short", false, "a quick run that shows that the harness works")
	var s settings
	flag.StringVar(&s.warmwire, "warmwire", "bin/warmwire", "the Warmwire `binary`")
	flag.StringVar(&s.out, "out", "", "also write the table to this Markdown `file`")
	flag.StringVar(&s.only, "only", "", "comma-separated `peers` to run")
	flag.Parse()
	s.size(*short)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch *role {
	case "":
		err = run(ctx, s)
	case "upstream":
		err = runUpstream(ctx, *listen, *caFile)
	case "stock":
		err = runStock(ctx, *listen, *target, *caFile, *h1)
	default:
		err = fmt.Errorf("unknown role %q", *role)
	}
	if err != nil {
		log.Fatal("bench: ", err)
	}
}

func (s *settings) size(short bool) {
	s.rounds, s.calls, s.streams, s.rate, s.duration, s.idle = 8, 400, 200, 100, 6*time.Second, 2000
	if short {
		s.rounds, s.calls, s.streams, s.rate, s.duration, s.idle = 2, 50, 20, 50, time.Second, 100
	}
}
