// SPDX-License-Identifier: Apache-2.0

package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
)

// What is observed: so many calls a second, over so many upstreams, all in use.
const (
	observedRate      = 5000
	observedUpstreams = 12
	observedWorkers   = 128
	dashboardPolls    = 5 * time.Second // as app.js has it
)

// observedRows are the ways to look at a Warmwire that works. The last one is nobody
// again: how far it is from 1 is the noise.
var observedRows = []struct {
	name           string
	scrapes, pages bool // /metrics each second; the dashboard is open
	timing         bool // listen.server_timing
}{
	{name: "`/metrics` each second, text and protobuf in turn", scrapes: true},
	{name: "a dashboard open", pages: true},
	{name: "`listen.server_timing`", timing: true},
	{name: "all three", scrapes: true, pages: true, timing: true},
	{name: "control: nobody looks"},
}

// An observed is one round of a row, or of nobody.
type observed struct {
	cpu  time.Duration
	n    int64
	took *hdrhistogram.Histogram
}

// A lookout scrapes, and notes what that took.
type lookout struct {
	admin         string
	http          http.Client
	took          *hdrhistogram.Histogram
	plain, zipped int // bytes of the last page, as text
}

// An observing is a Warmwire with its admin address.
type observing struct {
	*bench
	p       *peer
	file    string
	base    string // of the configuration, without server_timing
	c       *client
	look    *lookout
	ratios  [][2][]float64 // by row: CPU, p99
	perCall []float64      // µs, nobody looking
}

// runObserved alternates loads with and without somebody who looks, on one process.
func runObserved(ctx context.Context, s settings) error {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	start := time.Now()
	o := &observing{bench: b, ratios: make([][2][]float64, len(observedRows))}
	p, err := b.rack.start(ctx, spec{name: "warmwire-observed", kind: reverse, start: o.start})
	if err != nil {
		return err
	}
	defer p.stop()
	o.c = p.client(b.ca)
	defer o.c.close()
	if _, err := o.paced(ctx, min(b.observedFor, 2*time.Second)); err != nil { // warm
		return err
	}
	for n := range s.rounds {
		for i := range observedRows {
			if err := o.round(ctx, i); err != nil {
				return fmt.Errorf("%s: %w", observedRows[i].name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s\n", n+1, s.rounds, time.Since(start).Round(time.Second))
	}
	text := o.report(time.Since(start))
	if s.out != "" {
		if err := os.WriteFile(s.out, []byte(text), 0o644); err != nil {
			return err
		}
	}
	_, err = io.WriteString(os.Stdout, text)
	return err
}

func (o *observing) start(r *rack, ctx context.Context, p *peer, address string) error {
	admin, err := freeAddr()
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "admin: {address: %s}\nstate_dir: %s\nlog: {level: warn, access: {sample: 0}}\nupstreams:\n", admin, filepath.Join(r.dir, p.name))
	for n := range observedUpstreams {
		fmt.Fprintf(&text, "  u%d: {url: 'https://%s', dialect: openai, protocols: [h2, http/1.1], tls: {ca_file: %s}, pool: {max_connections: 100}}\n", n, r.upstream, r.ca)
	}
	o.p, o.base = p, fmt.Sprintf("listen: {address: %s, server_timing: false}\n", address)+text.String()
	if o.file, err = r.config(p, o.base); err != nil {
		return err
	}
	o.look = &lookout{admin: "http://" + admin, took: histogram(), http: http.Client{Transport: &http.Transport{DisableCompression: true}}}
	p.version = versionOf(ctx, r.warmwire, "version")
	return r.run(ctx, p, address, r.warmwire, "run", "-c", o.file)
}

// timing turns listen.server_timing and waits until answers show it.
func (o *observing) timing(ctx context.Context, on bool) error {
	text := o.base
	if on {
		text = strings.Replace(text, "server_timing: false", "server_timing: true", 1)
	}
	if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
		return err
	}
	if err := o.p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		resp, err := o.c.post(ctx, "/u0/v1/call")
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if (resp.Header.Get("Server-Timing") != "") == on {
			return nil
		}
	}
	return errors.New("Server-Timing does not change on a reload")
}

// round is nobody, somebody, somebody, nobody: so a machine that becomes slower or
// faster favours neither.
func (o *observing) round(ctx context.Context, i int) error {
	row := observedRows[i]
	var sums [2]observed
	for _, looked := range []int{0, 1, 1, 0} {
		if row.timing {
			if err := o.timing(ctx, looked == 1); err != nil {
				return err
			}
		}
		watching, stop := context.WithCancel(ctx)
		var eyes errgroup.Group
		if looked == 1 && row.scrapes {
			eyes.Go(func() error { return o.look.scrape(watching) })
		}
		if looked == 1 && row.pages {
			eyes.Go(func() error { return o.look.dashboard(watching) })
		}
		one, err := o.paced(ctx, o.observedFor)
		stop()
		if err := errors.Join(err, eyes.Wait()); err != nil {
			return err
		}
		sums[looked].add(one)
	}
	quiet, looked := sums[0], sums[1]
	o.perCall = append(o.perCall, float64(quiet.cpu.Microseconds())/float64(quiet.n))
	o.ratios[i][0] = append(o.ratios[i][0], float64(looked.cpu)/float64(looked.n)/(float64(quiet.cpu)/float64(quiet.n)))
	o.ratios[i][1] = append(o.ratios[i][1], float64(looked.took.ValueAtPercentile(99))/float64(quiet.took.ValueAtPercentile(99)))
	return nil
}

func (a *observed) add(b observed) {
	a.cpu, a.n = a.cpu+b.cpu, a.n+b.n
	if a.took == nil {
		a.took = histogram()
	}
	a.took.Merge(b.took)
}

// paced calls at the rate, whether answers come or not, and counts from when a call
// was due.
func (o *observing) paced(ctx context.Context, length time.Duration) (out observed, err error) {
	out.took = histogram()
	before, err := runTime(o.p.cmd.Process.Pid)
	if err != nil {
		return out, err
	}
	due := make(chan time.Time, observedRate) // a second of them
	var callers errgroup.Group
	parts := make([]*hdrhistogram.Histogram, observedWorkers)
	for w := range parts {
		parts[w] = histogram()
		callers.Go(func() error {
			n := w
			var failed error
			for at := range due { // to the end, so that the pace never blocks
				if failed != nil {
					continue
				}
				n++
				if failed = o.call(ctx, n%observedUpstreams); failed == nil {
					_ = parts[w].RecordValue(max(1, time.Since(at).Microseconds()))
				}
			}
			return failed
		})
	}
	begin := time.Now()
	for n := range int64(length.Seconds() * observedRate) {
		at := begin.Add(time.Duration(n) * time.Second / observedRate)
		if err := pause(ctx, time.Until(at)); err != nil {
			break
		}
		due <- at
	}
	close(due)
	err = errors.Join(callers.Wait(), ctx.Err())
	for _, part := range parts {
		out.took.Merge(part)
	}
	out.n = out.took.TotalCount()
	after, rerr := runTime(o.p.cmd.Process.Pid)
	out.cpu = after - before
	return out, errors.Join(err, rerr)
}

func (o *observing) call(ctx context.Context, upstream int) error {
	resp, err := o.c.post(ctx, fmt.Sprintf("/u%d/v1/call", upstream))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// scrape asks as Prometheus does, each second, for text and for protobuf.
func (l *lookout) scrape(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; ; n++ {
		accept := "text/plain;version=0.0.4"
		if n%2 == 1 {
			accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
		}
		start := time.Now()
		zipped, page, err := l.read(ctx, "/metrics", accept, "gzip")
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		_ = l.took.RecordValue(max(1, time.Since(start).Microseconds()))
		if n%2 == 0 {
			l.zipped, l.plain = zipped, page
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// read fetches a page whole: its bytes on the wire, and unpacked.
func (l *lookout) read(ctx context.Context, path, accept, encoding string) (wire, page int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.admin+path, nil)
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Accept-Encoding", encoding)
	resp, err := l.http.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return 0, 0, errors.Join(err, fmt.Errorf("%s: %s", path, resp.Status))
	}
	if resp.Header.Get("Content-Encoding") != "gzip" {
		return len(raw), len(raw), nil
	}
	z, err := gzip.NewReader(strings.NewReader(string(raw)))
	if err != nil {
		return 0, 0, err
	}
	n, err := io.Copy(io.Discard, z)
	return len(raw), int(n), err
}

// dashboard reads what the page reads: its events, and every five seconds the metrics
// and the list of requests.
func (l *lookout) dashboard(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.admin+"/v1/events", nil)
	if err != nil {
		return err
	}
	resp, err := l.http.Do(req)
	if err != nil {
		return err
	}
	var reading errgroup.Group
	reading.Go(func() error { _, _ = io.Copy(io.Discard, resp.Body); return nil })
	defer func() { _ = resp.Body.Close(); _ = reading.Wait() }()
	tick := time.NewTicker(dashboardPolls)
	defer tick.Stop()
	for {
		for _, path := range []string{"/metrics", "/v1/requests/slowest?by=duration"} {
			if _, _, err := l.read(ctx, path, "text/plain", "gzip"); err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (o *observing) report(took time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s, %s/%s, %d cores, %s; %d rounds of four times %s at %d calls a second over %d upstreams; looked at ÷ not looked at, medians (least–most).\n\n",
		time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), took.Round(time.Second), o.rounds, o.observedFor, observedRate, observedUpstreams)
	w := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	line(w, "", "CPU of a call", "its p99")
	line(w, slices.Repeat([]string{"---"}, 3)...)
	for i, row := range observedRows {
		line(w, row.name, cell(o.ratios[i][0], "%.3f"), cell(o.ratios[i][1], "%.3f"))
	}
	_ = w.Flush() // into memory
	fmt.Fprintf(&text, "\nA call costs Warmwire %s µs of CPU. A scrape, beside the calls: p50 %.1f ms, p99 %.1f ms, of %d; the page has %d bytes, %d packed.\n",
		cell(o.perCall, "%.0f"), float64(o.look.took.ValueAtPercentile(50))/1000, float64(o.look.took.ValueAtPercentile(99))/1000, o.look.took.TotalCount(), o.look.plain, o.look.zipped)
	return text.String()
}
