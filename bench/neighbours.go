// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"github.com/warmwire/warmwire/internal/mockapi"
)

// The study's experiment: an upstream that serves so many requests at once, and a tenant
// that comes with so many. Two others call at a rate, at random. Calls take three
// times as long as the study's, so that the noise of a busy machine counts for less.
const (
	capacity       = 16
	neighbourBurst = 128
	neighbourRate  = 7               // calls a second of each of the others
	afterBurst     = 3 * time.Second // in which calls begin that count
)

// neighbourRows are the ways to the upstream.
var neighbourRows = []struct{ name, limits string }{
	{"no limits", "{}"},
	{"`limits.concurrency: 16`", "{concurrency: 16, queue_timeout: 1m}"},
	{"`limits.adaptive: true`", "{adaptive: true, queue_timeout: 1m}"},
}

// A neighbours is one round of a row.
type neighbours struct {
	p99   map[bool]map[string]float64 // ms; whether there were bursts, by tenant
	drain float64                     // ms until the last call of a burst was answered, the mean
}

// runNeighbours has each row's Warmwire stand before a model API of its own.
func runNeighbours(ctx context.Context, s settings) error {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	start := time.Now()
	rounds := make([][]neighbours, len(neighbourRows))
	for n := range s.memory {
		for i := range neighbourRows {
			one, err := b.neighboursRound(ctx, i)
			if err != nil {
				return fmt.Errorf("%s: %w", neighbourRows[i].name, err)
			}
			rounds[i] = append(rounds[i], one)
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s\n", n+1, s.memory, time.Since(start).Round(time.Second))
	}
	text := s.neighboursReport(rounds, time.Since(start))
	if s.out != "" {
		if err := os.WriteFile(s.out, []byte(text), 0o644); err != nil {
			return err
		}
	}
	_, err = io.WriteString(os.Stdout, text)
	return err
}

// neighboursRound starts a row's processes, and measures them quiet and with bursts.
func (b *bench) neighboursRound(ctx context.Context, i int) (out neighbours, err error) {
	api, err := mockapi.New(mockapi.Config{TLSAddr: "off", Capacity: capacity})
	if err != nil {
		return out, err
	}
	if err := api.Listen(); err != nil {
		return out, err
	}
	run, end := context.WithCancel(ctx)
	var serving errgroup.Group
	serving.Go(func() error { return api.Run(run) })
	defer func() {
		end()
		if werr := serving.Wait(); err == nil {
			err = werr
		}
	}()
	p, err := b.rack.start(ctx, spec{name: fmt.Sprintf("warmwire-neighbours-%d", i), kind: reverse, start: func(r *rack, ctx context.Context, p *peer, address string) error {
		p.base += "/bench"
		return r.runWarmwire(ctx, p, address, fmt.Sprintf("upstreams:\n  bench: {url: '%s', dialect: openai, protocols: [http/1.1], limits: %s}\n",
			api.URL(), neighbourRows[i].limits))
	}})
	if err != nil {
		return out, err
	}
	defer p.stop()
	out.p99 = make(map[bool]map[string]float64)
	c := p.client(b.ca)
	defer c.close()
	if out.p99[false], _, err = c.neighbourCalls(ctx, b.quietFor, 0); err != nil {
		return out, err
	}
	out.p99[true], out.drain, err = c.neighbourCalls(ctx, time.Duration(b.burstCount)*b.burstEvery, b.burstEvery)
	return out, err
}

// neighbourCalls has gold and silver call for a time, beside bursts of bulk if every is
// not 0. Of these it counts the calls that begin soon after a burst.
func (c *client) neighbourCalls(ctx context.Context, length, every time.Duration) (p99 map[string]float64, drain float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, length+time.Minute)
	defer cancel()
	var calls errgroup.Group
	var mu sync.Mutex // guards took and drains
	took := map[string]*hdrhistogram.Histogram{"interactive": histogram(), "default": histogram()}
	var drains []float64
	begin := time.Now()
	for class, into := range took {
		calls.Go(func() error {
			var own errgroup.Group
			for time.Since(begin) < length {
				if err := pause(ctx, time.Duration(rand.ExpFloat64()*float64(time.Second/neighbourRate))); err != nil {
					return err
				}
				own.Go(func() error {
					at := time.Now()
					counts := every == 0 || at.Sub(begin)%every < afterBurst
					if err := c.neighbourCall(ctx, class); err != nil {
						return err
					}
					mu.Lock()
					defer mu.Unlock()
					if counts {
						_ = into.RecordValue(max(1, time.Since(at).Microseconds()))
					}
					return nil
				})
			}
			return own.Wait()
		})
	}
	for n := 0; every > 0 && time.Duration(n)*every < length; n++ {
		calls.Go(func() error {
			if err := pause(ctx, time.Until(begin.Add(time.Duration(n)*every))); err != nil {
				return err
			}
			at := time.Now()
			var burst errgroup.Group
			for range neighbourBurst {
				burst.Go(func() error { return c.neighbourCall(ctx, "batch") })
			}
			err := burst.Wait()
			mu.Lock()
			drains = append(drains, time.Since(at).Seconds()*1000)
			mu.Unlock()
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, 0, err
	}
	p99 = make(map[string]float64, len(took))
	for class, h := range took {
		p99[class] = float64(h.ValueAtPercentile(99)) / 1000
	}
	for _, d := range drains {
		drain += d / float64(len(drains))
	}
	return p99, drain, ctx.Err()
}

// neighbourCall makes one call that takes 210 to 258 ms in the upstream.
func (c *client) neighbourCall(ctx context.Context, class string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions", strings.NewReader(`{"model": "m", "stream": true, "messages": []}`))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Warmwire-Priority": class, "Mock-Tokens": "4", "Mock-Gap": "15ms", "Mock-Ttft": fmt.Sprintf("%dms", 165+rand.IntN(48))} {
		req.Header.Set(name, value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", class, resp.Status)
	}
	return nil
}

// neighboursReport is the table: medians of the rounds with their spread.
func (s settings) neighboursReport(rounds [][]neighbours, took time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s, %s/%s, %d cores, %s; %d rounds, medians (least–most). The upstream serves %d at once.\n\n",
		time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), took.Round(time.Second), s.memory, capacity)
	w := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	line(w, "", "interactive: P99 quiet, ms", "beside a burst, ×", "default: P99 quiet, ms", "beside a burst, ×", "the burst takes, ms")
	line(w, "---", "---", "---", "---", "---", "---")
	for i, row := range neighbourRows {
		cells := []string{row.name}
		for _, class := range []string{"interactive", "default"} {
			var quiet, ratio []float64
			for _, one := range rounds[i] {
				quiet = append(quiet, one.p99[false][class])
				ratio = append(ratio, one.p99[true][class]/one.p99[false][class])
			}
			cells = append(cells, cell(quiet, "%.0f"), cell(ratio, "%.2f"))
		}
		var drains []float64
		for _, one := range rounds[i] {
			drains = append(drains, one.drain)
		}
		line(w, append(cells, cell(drains, "%.0f"))...)
	}
	_ = w.Flush() // into memory
	return text.String()
}
