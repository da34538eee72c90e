// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	twiceWorkers = 64
	longBody     = 100 << 10 // of one call in ten; the others have 1 KiB
)

// A twice is what became of many faulted calls.
type twice struct {
	name             string
	defaults         bool // of Warmwire
	calls            int  // that were made
	answered, others int64
	broken           int64 // without an answer, or within it
	arrivals         int
	executed         int // different calls
	again            int // calls that were executed more than once
	refused, lost    int // calls that were refused first, and those of them that were never executed
	took             time.Duration
}

// runTwice makes faulted calls through Warmwire over both protocols, and fails if one was
// executed twice with the defaults.
func runTwice(ctx context.Context, s settings) error {
	rows, err := twiceRows(ctx, s)
	if err != nil {
		return err
	}
	twiceTable(os.Stdout, rows)
	for _, row := range rows {
		if row.again > 0 && row.defaults {
			return fmt.Errorf("%s: %d of %d calls were executed more than once", row.name, row.again, row.calls)
		}
	}
	return nil
}

// twiceRows runs the defaults, and then settings that do execute calls twice, which
// shows that the count sees it.
func twiceRows(ctx context.Context, s settings) ([]twice, error) {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return nil, err
	}
	defer cleanup()
	var rows []twice
	for _, row := range []struct {
		name, retry string
		h2          bool
		calls       int
	}{
		{"its defaults, HTTP/1.1 upstream", "", false, s.twice / 2},
		{"its defaults, HTTP/2 upstream", "", true, s.twice / 2},
		{"`resets: true`, HTTP/1.1 upstream", "resets: true, budget: 1", false, s.twice / 20},
		{"`statuses: [503]`, HTTP/2 upstream", "statuses: [503], budget: 1", true, s.twice / 20},
	} {
		one, err := b.faulted(ctx, row.retry, row.h2, row.calls)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.name, err)
		}
		one.name, one.defaults = row.name, row.retry == ""
		rows = append(rows, *one)
	}
	return rows, nil
}

func twiceTable(out io.Writer, rows []twice) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "Warmwire with", "faulted calls", "arrived", "executed", "more than once", "refused at first", "of those never executed", "app got 200", "another status", "broken off", "s")
	line(w, slices.Repeat([]string{"---"}, 11)...)
	for _, t := range rows {
		line(w, t.name, fmt.Sprint(t.calls), fmt.Sprint(t.arrivals), fmt.Sprint(t.executed), fmt.Sprint(t.again), fmt.Sprint(t.refused), fmt.Sprint(t.lost),
			fmt.Sprint(t.answered), fmt.Sprint(t.others), fmt.Sprint(t.broken), fmt.Sprintf("%.0f", t.took.Seconds()))
	}
	_ = w.Flush()
}

// faulted makes n calls, each with a fault, through a Warmwire with these settings of
// retry.
func (b *bench) faulted(ctx context.Context, retry string, h2 bool, n int) (*twice, error) {
	ctx, stop := context.WithCancel(ctx)
	c := newCareless()
	url, protocol, serve, err := b.listenCareless(c, h2)
	if err != nil {
		stop()
		return nil, err
	}
	var servers errgroup.Group
	servers.Go(func() error { return serve(ctx) })
	p, err := b.rack.start(ctx, spec{name: "warmwire", kind: reverse, start: func(r *rack, ctx context.Context, p *peer, address string) error {
		p.base += "/bench"
		return r.runWarmwire(ctx, p, address, fmt.Sprintf("upstreams:\n  bench: {url: '%s', dialect: openai, protocols: [%s], tls: {ca_file: %s}, retry: {%s}}\n",
			url, protocol, r.ca+".careless", retry))
	}})
	if err != nil {
		stop()
		return nil, err
	}
	kinds := faults
	if h2 {
		kinds = append(slices.Repeat(ofStream, streamOver), ofConn...)
	}
	out := &twice{calls: n}
	begin := time.Now()
	out.make(ctx, p.client(b.ca), kinds, n)
	out.took = time.Since(begin)
	p.stop()
	stop()
	err = servers.Wait()
	c.mu.Lock()
	out.arrivals = c.arrivals
	c.mu.Unlock()
	out.executed, out.again, out.refused, out.lost = c.summary()
	return out, err
}

// listenCareless returns where a careless listens, and what serves there.
func (b *bench) listenCareless(c *careless, h2 bool) (url, protocol string, serve func(context.Context) error, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", nil, err
	}
	cert, err := selfSigned(b.rack.ca + ".careless")
	if err != nil {
		return "", "", nil, err
	}
	if !h2 {
		return "http://" + ln.Addr().String(), "http/1.1", func(ctx context.Context) error { return c.serve(ctx, ln, c.serveH1) }, nil
	}
	secure := tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
	return "https://" + ln.Addr().String(), "h2", func(ctx context.Context) error { return c.serve(ctx, secure, c.serveH2) }, nil
}

// make makes the calls. The app itself never sends one again, and one in twenty leaves
// after at most 2 ms.
func (t *twice) make(ctx context.Context, c *client, kinds []string, n int) {
	defer c.close()
	var next atomic.Int64
	var workers errgroup.Group
	body := bytes.Repeat([]byte("x"), longBody)
	for range twiceWorkers {
		workers.Go(func() error {
			for {
				i := int(next.Add(1))
				if i > n || ctx.Err() != nil {
					return nil
				}
				size := 1 << 10
				if i%10 == 0 {
					size = longBody
				}
				one, cancel := context.WithCancel(ctx)
				if i%20 == 1 {
					time.AfterFunc(time.Duration(rand.Int64N(int64(2*time.Millisecond))), cancel)
				}
				status, err := c.faulted(one, i, kinds[rand.IntN(len(kinds))], body[:size])
				cancel()
				switch {
				case err != nil:
					atomic.AddInt64(&t.broken, 1)
				case status == http.StatusOK:
					atomic.AddInt64(&t.answered, 1)
				default:
					atomic.AddInt64(&t.others, 1)
				}
			}
		})
	}
	_ = workers.Wait() // they return none
}

func (c *client) faulted(ctx context.Context, n int, fault string, body []byte) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions", io.MultiReader(bytes.NewReader(body))) // no GetBody
	if err != nil {
		return 0, err
	}
	req.ContentLength = int64(len(body))
	req.Header.Set(callHeader, fmt.Sprint(n))
	req.Header.Set(faultHeader, fault)
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
