// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A spread is the median of several rounds with the least and the most.
type spread struct{ median, least, most float64 }

// over sums up the values that are numbers: a ratio to nothing is none.
func over(values []float64) (s spread, ok bool) {
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(values) == 0 {
		return spread{}, false
	}
	slices.Sort(values)
	n := len(values)
	return spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}, true
}

// cell prints a spread for a table.
func cell(values []float64, format string) string {
	s, ok := over(values)
	if !ok {
		return "–"
	}
	return fmt.Sprintf(format+" ("+format+"–"+format+")", s.median, s.least, s.most)
}

// timeRatios are a figure over the direct one that it alternated with, by round.
func (r *result) timeRatios(figure func(figures) float64) []float64 {
	out := make([]float64, len(r.rounds))
	for i, one := range r.rounds {
		out[i] = figure(one.Peer) / figure(one.Direct)
	}
	return out
}

// costRatios are a figure over the stock proxy's in the same round.
func (r *result) costRatios(stock *result, figure func(figures) float64) []float64 {
	if stock == nil {
		return nil
	}
	out := make([]float64, min(len(r.rounds), len(stock.rounds)))
	for i := range out {
		out[i] = figure(r.rounds[i].Peer) / figure(stock.rounds[i].Peer)
	}
	return out
}

func (r *result) idleRatios(stock *result) []float64 {
	if stock == nil {
		return nil
	}
	out := make([]float64, min(len(r.memory), len(stock.memory)))
	for i := range out {
		out[i] = r.memory[i].Idle / stock.memory[i].Idle
	}
	return out
}

// shares are a figure as a percentage of what a slow reader asked for.
func (r *result) shares(figure func(memory) float64) []float64 {
	out := make([]float64, len(r.memory))
	for i, m := range r.memory {
		out[i] = 100 * figure(m) / answerBytes
	}
	return out
}

func (r *result) cut() (n int) {
	for _, one := range r.rounds {
		n += one.Peer.Cut
	}
	return n
}

// report prints the tables, and writes the files that were asked for.
func (b *bench) report(took time.Duration) error {
	out := io.Writer(os.Stdout)
	if b.out != "" {
		f, err := os.Create(b.out)
		if err != nil {
			return err
		}
		defer f.Close()
		out = io.MultiWriter(out, f)
	}
	if err := b.markdown(out, time.Now(), took); err != nil {
		return err
	}
	if b.json == "" {
		return nil
	}
	text, err := b.absolute()
	if err != nil {
		return err
	}
	return os.WriteFile(b.json, text, 0o644)
}

// absolute is the JSON form: every round of every peer.
func (b *bench) absolute() ([]byte, error) {
	type entry struct {
		Name    string   `json:"peer"`
		Version string   `json:"version,omitempty"`
		How     string   `json:"how"`
		Rounds  []round  `json:"rounds"`
		Memory  []memory `json:"memory"`
	}
	var out []entry
	for _, r := range b.results {
		out = append(out, entry{r.spec.name, r.version, r.spec.how, r.rounds, r.memory})
	}
	return json.MarshalIndent(out, "", "  ")
}

const intro = `# Benchmarks

Made by ` + "`make bench`" + `: every peer a process of its own, on loopback, before the same upstream, with the same HTTP/1.1 client.
Each run of a peer alternates with a run of the same load without a proxy, and every figure is the **median of the rounds'
ratios, with the least and the most of them**. There are no absolute figures here, because those are the machine's;
` + "`bin/bench -json FILE`" + ` writes them.

`

const notes = `
## What the columns mean

- **TTFT**: time from the call to the first byte of the answer's body, one short call after the other over warm connections. 1.00 is a way without a proxy.
- **relay**: how long a token of 120 bytes is on its way. The upstream stamps it when it writes it, the client reads the same monotonic clock when it has it.
- **requests/s**: closed loop of calls of 1 KiB with answers of 1 KiB. Client, proxy and upstream share the machine's cores, so this sinks with every µs that a proxy computes.
- **CPU**, user and system time of the proxy's process alone, and **memory per stream**, growth of its resident memory while silent streams are open, are relative to the stock proxy in the same round.
- **slow reader**: asks for 20 MiB and reads 20 kB/s. *held* is the growth of the proxy's resident memory per reader, *read ahead* what was taken from the upstream and has not reached the reader, both as a share of the answer. Read ahead counts socket buffers too: 64 KiB at either end are ours (that is the direct row), the proxy's own are the kernel's choice unless the proxy sets them. Connection overhead is in *held*; it can be less than nothing where a collector runs in between.
- **control** is no proxy either: as far as its ratios are from 1, the others' may be from the truth.

## What is not comparable

- The two tables have different upstreams (TLS and plain), clients' ways and references: compare rows of one table only.
- squid and tinyproxy are forward proxies. An ` + "`https://`" + ` URL is to them a CONNECT tunnel whose bytes they cannot read: the client makes the TLS handshake with the API itself, so they keep no connection warm for it, see no request in it and bound no slow reader but by the tunnel's buffer. (squid can open such a tunnel with ` + "`ssl_bump`" + `, which Debian builds into another package; tinyproxy cannot.) Neither speaks HTTP/2. So they are measured where they do relay requests, over plain HTTP, and Warmwire and the stock proxy beside them do the same.
- tinyproxy keeps no connection, neither the client's nor the server's: each request pays for two TCP connections, which is what its TTFT and requests/s show. Once a stream runs it copies bytes.
- squid by default opens a new server connection for each POST, since a reused one may turn out closed; the setting that allows reuse is on here, to its favour.
- nginx and haproxy run with one process and one thread, squid and tinyproxy are built that way (tinyproxy with a thread a connection), the Go programs use as many cores as they like (Warmwire two).
- nginx, squid and tinyproxy reach the upstream with HTTP/1.1 or older: an idle stream costs them a connection, and a slow reader stops a connection of its own. With HTTP/2 upstream many streams share one.
- Loopback has no distance. What Warmwire is for (warm connections over far and lossy ways) gains nothing here; this page is about what it costs.

## Other runs of the same program

- ` + "`bin/bench -stalled 100`" + `: readers that never read, answers that are taken early, a small container ([buffers.md](buffers.md)).
- ` + "`bin/bench -retries`" + `: who tries again after errors, and what that costs ([retries.md](retries.md)).
- ` + "`bin/bench -twice 100000`" + `: calls to an upstream that fails in every way, and which it executed twice; ` + "`warmwire lab run … -- bin/bench -mock 5000`" + ` the same over a bad network ([retries.md](retries.md)).
- ` + "`bin/bench -beside FILE`" + `: this Warmwire over another build of it ([buffers.md](buffers.md)).
`

func (b *bench) markdown(out io.Writer, now time.Time, took time.Duration) error {
	var text strings.Builder
	text.WriteString(intro)
	fmt.Fprintf(&text, "%s, %s, %s/%s, %d cores, %s; %d rounds: %d calls, %s of closed loop over %d connections, %d streams at %d tokens/s for %s; "+
		"%d memory rounds with fresh processes: %d idle streams, %d slow readers for %s. %s\n",
		now.Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), took.Round(time.Second), b.rounds, b.calls, b.loop,
		b.conns, b.streams, b.rate, b.tokens, b.memory, b.idle, b.slow, b.slowFor, b.quiet())
	for _, k := range []kind{reverse, forward} {
		if err := b.tables(&text, k); err != nil {
			return err
		}
	}
	text.WriteString("\n## Who was measured\n\n")
	for _, r := range b.results {
		fmt.Fprintf(&text, "- **%s**", r.spec.name)
		if r.version != "" {
			fmt.Fprintf(&text, " %s", r.version)
		}
		fmt.Fprintf(&text, ": %s.\n", r.spec.how)
	}
	for _, sp := range b.missing {
		fmt.Fprintf(&text, "- **%s** was left out, because it is not installed (`apt-get install %s`).\n", sp.name, sp.debian)
	}
	text.WriteString(notes)
	_, err := io.WriteString(out, text.String())
	return err
}

// quiet says whether the machine was: the medians of the peers that are no
// proxies have to be near 1, or nobody's mean much.
func (b *bench) quiet() string {
	const least, most = 0.9, 1.1
	var off []string
	seen := false
	for _, r := range b.results {
		if r.spec.start != nil || len(r.rounds) == 0 {
			continue
		}
		seen = true
		for _, column := range []struct {
			name   string
			figure func(figures) float64
		}{
			{"TTFT p50", func(f figures) float64 { return f.FirstP50 }},
			{"relay p50", func(f figures) float64 { return f.RelayP50 }},
			{"requests/s", func(f figures) float64 { return f.PerSecond }},
		} {
			if s, ok := over(r.timeRatios(column.figure)); ok && (s.median < least || s.median > most) {
				off = append(off, fmt.Sprintf("%s of %s is %.2f", column.name, r.spec.name, s.median))
			}
		}
	}
	switch {
	case !seen:
		return "No control was run, so the noise of this run is unknown."
	case len(off) > 0:
		return "**The machine was not quiet, so do not quote this run**: " + strings.Join(off, ", ") + "; without noise each is 1."
	}
	return "The machine was quiet: the medians of the controls (TTFT p50, relay p50, requests/s) are within 0.9–1.1 of direct."
}

// tables prints the peers of one kind: time relative to direct, cost relative
// to the stock proxy.
func (b *bench) tables(out io.Writer, k kind) error {
	var rows []*result
	var stock *result
	direct, stockName := k.reference()
	for _, r := range b.results {
		if r.spec.kind != k {
			continue
		}
		rows = append(rows, r)
		if r.spec.name == stockName {
			stock = r
		}
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\n## %s\n\n", map[kind]string{reverse: "Reverse proxies, TLS upstream", forward: "Forward proxies, plain HTTP upstream"}[k])
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "peer", "TTFT p50, × direct", "TTFT p99, × direct", "relay p50, × direct", "relay p99, × direct", "requests/s, × direct", "streams cut")
	line(w, slices.Repeat([]string{"---"}, 7)...)
	for _, r := range rows {
		if r.spec.name == direct {
			continue
		}
		const f = "%.2f"
		line(w, r.spec.name,
			cell(r.timeRatios(func(f figures) float64 { return f.FirstP50 }), f), cell(r.timeRatios(func(f figures) float64 { return f.FirstP99 }), f),
			cell(r.timeRatios(func(f figures) float64 { return f.RelayP50 }), f), cell(r.timeRatios(func(f figures) float64 { return f.RelayP99 }), f),
			cell(r.timeRatios(func(f figures) float64 { return f.PerSecond }), f),
			fmt.Sprintf("%d of %d", r.cut(), len(r.rounds)*b.streams))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	line(w, "peer", "CPU per token, × stock", "CPU per request, × stock", "memory per idle stream, × stock", "slow reader: held, % of answer", "slow reader: read ahead, % of answer")
	line(w, slices.Repeat([]string{"---"}, 6)...)
	for _, r := range rows {
		ahead := cell(r.shares(func(m memory) float64 { return m.Ahead }), "%.2f")
		if r.spec.start == nil { // nothing of its own to weigh
			if r.spec.name == direct {
				line(w, r.spec.name, "–", "–", "–", "–", ahead)
			}
			continue
		}
		line(w, r.spec.name, cell(r.costRatios(stock, func(f figures) float64 { return f.TokenCPU }), "%.2f"),
			cell(r.costRatios(stock, func(f figures) float64 { return f.RequestCPU }), "%.2f"), cell(r.idleRatios(stock), "%.2f"),
			cell(r.shares(func(m memory) float64 { return m.Slow }), "%.2f"), ahead)
	}
	return w.Flush()
}

// line writes one row of a Markdown table.
func line(w io.Writer, cells ...string) {
	fmt.Fprintf(w, "| %s\t|\n", strings.Join(cells, "\t| "))
}
