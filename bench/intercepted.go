// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// A way is one on which an app's call reaches the upstream.
type way struct {
	name, how string
	proxy     string // the peer that it goes through; "" = none
	base      string // where calls go
	tunnel    bool   // by CONNECT
	http2     bool   // of the app
	roots     string // file: what the app trusts

	rounds []wayRound
}

// A wayRound is what one round showed, in µs.
type wayRound struct{ kept, fresh wayFigures }

// wayFigures are of calls on one connection, or on a new one each.
type wayFigures struct{ p50, p99, cpu float64 }

// runIntercepted compares calls through an intercepted tunnel with those by base URL, with
// those through a blind tunnel, and with mitmproxy's, on all ways in each round.
func runIntercepted(ctx context.Context, s settings) error {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	start := time.Now()
	peers := map[string]*peer{}
	for _, sp := range []spec{
		{name: "warmwire", start: startIntercepting},
		{name: "mitmproxy", debian: "mitmproxy", start: startMitmproxy},
	} {
		p, err := b.rack.start(ctx, sp)
		if errors.Is(err, errMissing) {
			b.missing = append(b.missing, sp) // the report says so
			continue
		}
		if err != nil {
			return err
		}
		defer p.stop()
		peers[sp.name] = p
	}
	ways := slices.DeleteFunc(b.ways(ctx, peers), func(w *way) bool { return w.proxy != "" && peers[w.proxy] == nil })
	for n := range b.rounds {
		for i := range ways {
			w := ways[(i+n)%len(ways)] // nobody is always first
			one, err := b.walk(ctx, w, peers[w.proxy])
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			w.rounds = append(w.rounds, one)
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s\n", n+1, b.rounds, time.Since(start).Round(time.Second))
	}
	return b.wayTable(os.Stdout, ways, peers, time.Since(start))
}

// ways are all of them; direct is the first, base URL the second.
func (b *bench) ways(ctx context.Context, peers map[string]*peer) []*way {
	port := b.rack.upstream[strings.LastIndexByte(b.rack.upstream, ':'):]
	listed, unlisted := "https://localhost"+port, "https://127.0.0.1"+port
	ways := []*way{
		{name: "direct", how: "no proxy; TLS, HTTP/1.1", base: listed, roots: b.rack.ca},
		{name: "base URL", how: "plain HTTP/1.1 to Warmwire", proxy: "warmwire", base: "/bench", roots: b.rack.ca},
		{name: "blind tunnel", how: "CONNECT through Warmwire to a host that is not listed; TLS and HTTP/1.1 of the app reach the upstream", proxy: "warmwire", tunnel: true, base: unlisted, roots: b.rack.ca},
		{name: "intercepted", how: "CONNECT to a listed host, HTTP/1.1 inside", proxy: "warmwire", tunnel: true, base: listed},
		{name: "intercepted, HTTP/2", how: "the same with HTTP/2 inside", proxy: "warmwire", tunnel: true, http2: true, base: listed},
		{name: "mitmproxy", how: "`mitmdump -q`, CONNECT, HTTP/1.1 inside", proxy: "mitmproxy", tunnel: true, base: listed},
		{name: "mitmproxy, HTTP/2", how: "the same with HTTP/2 inside", proxy: "mitmproxy", tunnel: true, http2: true, base: listed},
	}
	for _, w := range ways {
		switch p := peers[w.proxy]; {
		case p == nil:
		case !w.tunnel:
			w.base = p.base + w.base
		case w.roots != "":
		case w.proxy == "warmwire":
			w.roots = b.warmwireCA(ctx, p)
		default:
			w.roots = filepath.Join(b.rack.dir, "mitmproxy", "mitmproxy-ca-cert.pem")
		}
	}
	return ways
}

// warmwireCA asks for the file that apps must trust; a wrong one fails the first call.
func (b *bench) warmwireCA(ctx context.Context, p *peer) string {
	out, err := exec.CommandContext(ctx, b.rack.warmwire, "ca", "path", "-c", filepath.Join(b.rack.dir, p.name+".conf")).Output()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: warmwire ca path: %v\n", err)
	}
	return strings.TrimSpace(string(out))
}

func startIntercepting(r *rack, ctx context.Context, p *peer, address string) error {
	return r.runWarmwire(ctx, p, address, fmt.Sprintf("upstreams:\n"+
		"  bench: {url: 'https://%s', dialect: openai, tls: {ca_file: %s}}\nintercept: {hosts: [upstreams]}\n", r.upstream, r.ca))
}

func startMitmproxy(r *rack, ctx context.Context, p *peer, address string) error {
	binary, err := find("mitmdump")
	if err != nil {
		return err
	}
	p.version = versionOf(ctx, binary, "--version")
	host, port, _ := strings.Cut(address, ":")
	return r.run(ctx, p, address, binary, "-q", "--listen-host", host, "--listen-port", port, "--set", "confdir="+filepath.Join(r.dir, "mitmproxy"),
		"--set", "ssl_verify_upstream_trusted_ca="+r.ca, "--set", "connection_strategy=lazy")
}

// client is an app of the way.
func (w *way) client(p *peer, keep bool) (*http.Client, error) {
	text, err := os.ReadFile(w.roots)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	t := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, ClientSessionCache: tls.NewLRUClientSessionCache(16)},
		ForceAttemptHTTP2: w.http2, DisableCompression: true, DisableKeepAlives: !keep,
	}
	if w.tunnel {
		via, err := url.Parse(p.base)
		if err != nil {
			return nil, err
		}
		t.Proxy = http.ProxyURL(via)
	}
	return &http.Client{Transport: t}, nil
}

// walk makes one round of calls.
func (b *bench) walk(ctx context.Context, w *way, p *peer) (one wayRound, err error) {
	for _, keep := range []bool{true, false} {
		into, length := &one.kept, b.loop
		if !keep {
			into, length = &one.fresh, b.loop/2
		}
		c, err := w.client(p, keep)
		if err != nil {
			return one, err
		}
		*into, err = b.callsOf(ctx, &client{base: w.base, http: c}, p, length)
		c.CloseIdleConnections()
		if err != nil {
			return one, err
		}
	}
	return one, nil
}

// callsOf makes calls one after another for a time, and weighs what client, proxy and
// upstream have used for them.
func (b *bench) callsOf(ctx context.Context, c *client, p *peer, length time.Duration) (f wayFigures, err error) {
	h := histogram()
	if err := c.calls(ctx, 5, histogram()); err != nil { // what is made once has been made
		return f, err
	}
	before, err := b.allCPU(p)
	if err != nil {
		return f, err
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		if err := c.calls(ctx, 10, h); err != nil {
			return f, err
		}
	}
	after, err := b.allCPU(p)
	return wayFigures{float64(h.ValueAtPercentile(50)), float64(h.ValueAtPercentile(99)),
		float64((after - before).Microseconds()) / float64(h.TotalCount())}, err
}

// allCPU is what client, proxy and upstream have used.
func (b *bench) allCPU(p *peer) (time.Duration, error) {
	var own syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &own)
	sum := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	for _, one := range []*peer{b.rack.server, p} {
		if one == nil || err != nil {
			continue
		}
		var used time.Duration
		used, err = one.cpu()
		sum += used
	}
	return sum, err
}

func (b *bench) wayTable(out io.Writer, ways []*way, peers map[string]*peer, took time.Duration) error {
	fmt.Fprintf(out, "%s, %s, %s/%s, %d cores, %s; %d rounds, in each %s of calls on one connection and %s of calls on a new one each, one after another; medians (least–most).\n\n",
		time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), took.Round(time.Second), b.rounds, b.loop, b.loop/2)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "", "TTFT p50, × direct", "TTFT p99, × direct", "added at p50, × base URL's", "CPU of all, × direct", "new connections: TTFT p50, × direct", "p99", "CPU of all")
	line(w, slices.Repeat([]string{"---"}, 8)...)
	direct, base := ways[0].rounds, ways[1].rounds
	ratio := func(one *way, figure func(wayRound) float64) string {
		var all []float64
		for n, r := range one.rounds {
			all = append(all, figure(r)/figure(direct[n]))
		}
		return cell(all, "%.2f")
	}
	for _, one := range ways {
		var added []float64
		for n, r := range one.rounds {
			added = append(added, (r.kept.p50-direct[n].kept.p50)/(base[n].kept.p50-direct[n].kept.p50))
		}
		line(w, one.name,
			ratio(one, func(r wayRound) float64 { return r.kept.p50 }), ratio(one, func(r wayRound) float64 { return r.kept.p99 }), cell(added, "%.2f"),
			ratio(one, func(r wayRound) float64 { return r.kept.cpu }), ratio(one, func(r wayRound) float64 { return r.fresh.p50 }),
			ratio(one, func(r wayRound) float64 { return r.fresh.p99 }), ratio(one, func(r wayRound) float64 { return r.fresh.cpu }))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, one := range ways {
		version := ""
		if p := peers[one.proxy]; p != nil {
			version = " (" + one.proxy + " " + p.version + ")"
		}
		fmt.Fprintf(out, "- **%s**%s: %s.\n", one.name, version, one.how)
	}
	for _, sp := range b.missing {
		fmt.Fprintf(out, "- %s is left out: it is not installed (`apt-get install %s`).\n", sp.name, sp.debian)
	}
	return nil
}
