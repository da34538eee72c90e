// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"
)

// Of the run with open WebSockets.
const (
	socketSettle = 5 * time.Second // after the last one was opened
	socketDials  = 64              // handshakes at once
)

// A sockets upstream is a WebSocket server that says nothing and counts the pings that
// it answers.
type sockets struct{ pings atomic.Int64 }

func (s *sockets) serve(w http.ResponseWriter, r *http.Request) {
	up := websocket.Upgrader{ReadBufferSize: 256, WriteBufferSize: 256}
	c, err := up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	c.SetPingHandler(func(payload string) error {
		s.pings.Add(1)
		return c.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(time.Minute))
	})
	_, _, _ = c.ReadMessage() // until the client leaves
}

func (s *sockets) servePings(w http.ResponseWriter, _ *http.Request) {
	_, _ = fmt.Fprint(w, s.pings.Swap(0))
}

// socketSpecs are the rows.
func socketSpecs() []spec {
	own := func(name, heartbeat, how string) spec {
		return spec{name: name, how: how, start: func(r *rack, ctx context.Context, p *peer, address string) error {
			p.base += "/bench"
			return r.runWarmwire(ctx, p, address, fmt.Sprintf("upstreams:\n  bench: {url: 'https://%s', dialect: openai, tls: {ca_file: %s},"+
				" pool: {max_h1_connections: 20000}, heartbeat: {%s}}\nlimits: {memory: 512MiB}\n", r.upstream, r.ca, heartbeat))
		}}
	}
	return []spec{
		own("warmwire", "mode: adaptive", "its defaults"),
		own("warmwire, fixed 20 s", "mode: fixed", "`heartbeat.mode: fixed`: both sides pinged every 20 s"),
		own("warmwire, no heartbeats", "mode: \"off\"", "`heartbeat.mode: off`"),
		{name: "stock", how: "`httputil.ReverseProxy`, HTTP/1.1 upstream; it pings nobody", start: startStock(true)},
		{name: "nginx", debian: "nginx", how: "`proxy_pass` with Upgrade, one process; it pings nobody", start: func(r *rack, ctx context.Context, p *peer, address string) error {
			return r.runNginx(ctx, p, address, "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection Upgrade;")
		}},
	}
}

// An idled is what open WebSockets cost one proxy.
type idled struct {
	spec  spec
	open  int
	each  float64       // KiB of resident memory
	cpu   time.Duration // a second, while they are idle
	pings float64       // an hour and socket, to the upstream
}

// runSockets opens WebSockets through each proxy, on which nobody says anything.
func runSockets(ctx context.Context, s settings) error {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	rows, err := b.socketRows(ctx)
	return errors.Join(err, socketReport(os.Stdout, s, rows)) // those before a failure took their time
}

// socketRows measures each proxy in a process of its own.
func (b *bench) socketRows(ctx context.Context) (rows []idled, err error) {
	for _, sp := range socketSpecs() {
		if !strings.HasPrefix(sp.name, b.only) {
			continue
		}
		row := idled{spec: sp}
		err := b.fresh(ctx, sp, func(p *peer) error { return b.idleSockets(ctx, p, &row) })
		if err = b.absent(sp, err); err != nil {
			return rows, fmt.Errorf("%s: %w", sp.name, err)
		}
		if row.open > 0 {
			rows = append(rows, row)
		}
		fmt.Fprintf(os.Stderr, "bench: %s: %d sockets\n", sp.name, row.open)
	}
	return rows, nil
}

// idleSockets weighs one fresh process.
func (b *bench) idleSockets(ctx context.Context, p *peer, row *idled) error {
	c := p.client(b.ca)
	defer c.close()
	base, err := p.rss()
	if err != nil {
		return err
	}
	end, err := openSockets(ctx, p.base, b.sockets)
	defer end()
	if err != nil {
		return err
	}
	if err := pause(ctx, socketSettle); err != nil {
		return err
	}
	if _, err := b.pings(ctx, c); err != nil {
		return err
	}
	before, err := p.cpu()
	if err != nil {
		return err
	}
	if err := pause(ctx, b.socketsFor); err != nil {
		return err
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	pings, err := b.pings(ctx, c)
	if err != nil {
		return err
	}
	now, err := p.rss()
	if err != nil {
		return err
	}
	row.open, row.each = b.sockets, float64(now-base)/float64(b.sockets)/1024
	row.cpu = time.Duration(float64(after-before) / b.socketsFor.Seconds())
	row.pings = float64(pings) / float64(b.sockets) * float64(time.Hour) / float64(b.socketsFor)
	return nil
}

// pings are those that came to the upstream since it was last asked.
func (b *bench) pings(ctx context.Context, c *client) (n int64, err error) {
	resp, err := c.get(ctx, "/v1/pings")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = fmt.Fscan(resp.Body, &n)
	return n, err
}

// openSockets opens n, which answer pings until end.
func openSockets(ctx context.Context, base string, n int) (end func(), err error) {
	var mu sync.Mutex
	var all []*websocket.Conn
	var readers sync.WaitGroup
	end = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			_ = c.Close()
		}
		readers.Wait()
	}
	dialer := &websocket.Dialer{HandshakeTimeout: 20 * time.Second, ReadBufferSize: 256, WriteBufferSize: 256}
	var group errgroup.Group
	group.SetLimit(socketDials)
	for range n {
		group.Go(func() error {
			c, resp, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(base, "http")+"/v1/realtime", nil)
			if err != nil {
				if resp != nil {
					err = fmt.Errorf("%w: %s", err, resp.Status)
				}
				return err
			}
			mu.Lock()
			all = append(all, c)
			mu.Unlock()
			readers.Go(func() { _, _, _ = c.ReadMessage() }) // it answers pings
			return nil
		})
	}
	return end, group.Wait()
}

func socketReport(out io.Writer, s settings, rows []idled) error {
	fmt.Fprintf(out, "%s, %s, %s/%s, %d cores: %d open WebSockets on which nobody says anything, for %v; TLS to the upstream.\n\n",
		time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), s.sockets, s.socketsFor)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "proxy", "sockets", "memory each, KiB", "CPU, ms a second", "pings to the upstream, an hour and socket", "what it is")
	line(w, "---", "---", "---", "---", "---", "---")
	for _, r := range rows {
		line(w, r.spec.name, fmt.Sprint(r.open), fmt.Sprintf("%.1f", r.each), fmt.Sprintf("%.1f", float64(r.cpu)/float64(time.Millisecond)), fmt.Sprintf("%.0f", r.pings), r.spec.how)
	}
	return w.Flush()
}
