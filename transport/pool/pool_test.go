// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A fakeConn serves requests until they are told to end.
type fakeConn struct {
	limit   int
	changed func()
	h1      bool

	mu       sync.Mutex // guards the fields below
	inFlight int
	served   int
	most     int
	err      error
	shut     bool
	closed   bool
	ended    bool // by the peer, and nobody has read that yet
}

func (c *fakeConn) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

var errFull, errGone = errors.New("full"), errors.New("gone")

func (c *fakeConn) RoundTrip(*http.Request) (*http.Response, error) {
	c.mu.Lock()
	var err error
	switch {
	case c.err != nil || c.shut:
		err = errGone
	case c.inFlight >= c.limit:
		err = errFull
	default:
		c.inFlight++
		c.served++
		c.most = max(c.most, c.inFlight)
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &http.Response{Body: &fakeBody{c: c}}, nil
}

type fakeBody struct {
	c    *fakeConn
	once sync.Once
}

func (b *fakeBody) Read([]byte) (int, error) { return 0, errors.New("nothing to read") }

func (b *fakeBody) Close() error {
	b.once.Do(func() {
		b.c.mu.Lock()
		b.c.inFlight--
		b.c.mu.Unlock()
		b.c.changed()
	})
	return nil
}

func (c *fakeConn) Available() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.shut {
		return 0
	}
	return c.limit - c.inFlight
}

func (c *fakeConn) InFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight
}

func (c *fakeConn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *fakeConn) Shutdown() {
	c.mu.Lock()
	c.shut = true
	c.mu.Unlock()
}

func (c *fakeConn) Close() error {
	c.die(errGone)
	return nil
}

// die is the end of the connection by the peer.
func (c *fakeConn) die(err error) {
	c.mu.Lock()
	c.err, c.closed = err, true
	c.mu.Unlock()
	c.changed()
}

// An origin opens fake connections.
type origin struct {
	takes time.Duration
	limit int // of streams; 1 means HTTP/1.1
	fail  error

	mu    sync.Mutex // guards conns and fail
	conns []*fakeConn
}

func (o *origin) open(ctx context.Context, h1Only bool, changed func()) (Conn, Info, error) {
	select {
	case <-time.After(o.takes):
	case <-ctx.Done():
		return nil, Info{}, ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return nil, Info{}, o.fail
	}
	c := &fakeConn{limit: o.limit, changed: changed, h1: h1Only || o.limit == 1}
	if c.h1 {
		c.limit = 1
	}
	o.conns = append(o.conns, c)
	return c, Info{Protocol: "x", Multiplexed: !c.h1}, nil
}

func (o *origin) opened() []*fakeConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.conns)
}

func (o *origin) setFail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = err
}

// request sends one that lasts for d, and returns how it went.
func request(ctx context.Context, p *Pool, want Want, d time.Duration) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x.test/", nil)
	if err != nil {
		return err
	}
	resp, err := p.RoundTrip(req, want)
	if err != nil {
		return err
	}
	select { // on the bubble's clock
	case <-time.After(d):
	case <-p.ctx.Done():
	}
	return resp.Body.Close()
}

// burst sends n at once and returns their errors.
func burst(t *testing.T, p *Pool, n int, want Want, d time.Duration) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = request(t.Context(), p, want, d) })
	}
	all.Wait()
	return errs
}

func bubble(t *testing.T, o *origin, cfg Config, f func(t *testing.T, p *Pool)) {
	synctest.Test(t, func(t *testing.T) {
		cfg.Open = o.open
		p := New(cfg)
		f(t, p)
		p.Close()
		synctest.Wait()
		if n := p.waiting(); n > 0 || p.opening != [2]int{} || len(p.multi) > 0 || p.single > 0 {
			t.Errorf("left: %d waiters, opening %v, %d and %d connections", n, p.opening, len(p.multi), p.single)
		}
		for _, m := range p.multi {
			if m.entering != 0 {
				t.Errorf("%d requests are entering", m.entering)
			}
		}
	})
}

func TestColdBurst(t *testing.T) {
	tests := []struct {
		name         string
		limit, conns int
		cfg          Config
	}{
		{"one connection takes all", 100, 1, Config{}},
		{"as many as are needed", 20, 3, Config{}},
		{"no more than allowed, and the rest waits", 10, 2, Config{MaxConnections: 2}},
		{"HTTP/1.1: one for each", 1, 50, Config{}},
		{"HTTP/1.1: no more than allowed", 1, 7, Config{MaxH1Connections: 7}},
		{"streams on one bounded by us", 100, 5, Config{MaxStreams: 10}},
	}
	burst50 := func(t *testing.T, limit int, cfg Config) int {
		o := &origin{takes: 100 * time.Millisecond, limit: limit}
		bubble(t, o, cfg, func(t *testing.T, p *Pool) {
			for _, err := range burst(t, p, 50, Want{}, time.Second) {
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range o.opened() {
				if c.most > limit {
					t.Errorf("%d requests on a connection of %d", c.most, limit)
				}
			}
		})
		return len(o.opened())
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// While a request enters a connection it may count twice to one that looks at
			// that moment, which opens a few too many and never too few. On one processor
			// nobody looks.
			exact := tt.limit == 1 || tt.conns == 1 || tt.cfg.MaxConnections > 0
			if n := burst50(t, tt.limit, tt.cfg); n < tt.conns || exact && n != tt.conns {
				t.Errorf("%d connections, want %d", n, tt.conns)
			}
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			if n := burst50(t, tt.limit, tt.cfg); n != tt.conns {
				t.Errorf("%d connections on one processor, want %d", n, tt.conns)
			}
		})
	}
}

func TestQueueIsBoundedInLengthAndTime(t *testing.T) {
	o := &origin{limit: 1}
	bubble(t, o, Config{MaxH1Connections: 1, QueueLimit: 2, QueueTimeout: 3 * time.Second}, func(t *testing.T, p *Pool) {
		start := time.Now()
		go func() { _ = request(t.Context(), p, Want{}, time.Minute) }()
		synctest.Wait()
		results := make(chan error, 3)
		for range 3 {
			go func() { results <- request(t.Context(), p, Want{}, 0) }()
			synctest.Wait()
		}
		var full *Error
		if err := <-results; !errors.As(err, &full) || full.Code() != "upstream_queue_full" || full.Timeout() || full.RequestSent() || time.Since(start) != 0 {
			t.Fatalf("the third waiter: %v", err)
		}
		for range 2 {
			err := <-results
			var late *Error
			if !errors.As(err, &late) || late.Code() != "upstream_queue_timeout" || !late.Timeout() || time.Since(start) != 3*time.Second {
				t.Errorf("waited %v: %v", time.Since(start), err)
			}
		}
		time.Sleep(time.Minute)
	})
}

func TestUrgentGoFirstAndNobodyStarves(t *testing.T) {
	o := &origin{limit: 1}
	bubble(t, o, Config{MaxH1Connections: 1, QueueTimeout: time.Hour}, func(t *testing.T, p *Pool) {
		go func() { _ = request(t.Context(), p, Want{}, time.Second) }()
		synctest.Wait()
		var order []Class
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, class := range []Class{Batch, Batch, Default, Interactive} {
			for range 8 {
				all.Go(func() {
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x.test/", nil)
					resp, err := p.RoundTrip(req, Want{Class: class})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					order = append(order, class)
					mu.Unlock()
					time.Sleep(time.Second)
					_ = resp.Body.Close()
				})
				synctest.Wait()
			}
		}
		all.Wait()
		if i := slices.Index(order, Batch); i != 7-1 && i != 7 {
			t.Errorf("the first batch request came as number %d: %v", i, order)
		}
		urgent := 0
		for _, c := range order[:9] {
			if c == Interactive {
				urgent++
			}
		}
		if urgent != 8 || len(order) != 32 {
			t.Errorf("%d of 8 urgent requests among the first nine of %d", urgent, len(order))
		}
	})
}

func TestFailedOpeningReachesThoseWhoWait(t *testing.T) {
	o := &origin{limit: 100, takes: time.Second, fail: errors.New("no way there")}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		for _, err := range burst(t, p, 10, Want{}, 0) {
			if !errors.Is(err, o.fail) {
				t.Errorf("%v", err)
			}
		}
		o.setFail(nil)
		start := time.Now()
		if err := request(t.Context(), p, Want{}, 0); err != nil || time.Since(start) != time.Second {
			t.Errorf("the next one after %v: %v", time.Since(start), err)
		}
	})
}

func TestLeavingTheQueue(t *testing.T) {
	o := &origin{limit: 100, takes: 5 * time.Second}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		reason := errors.New("the app left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(reason) })
		start := time.Now()
		if err := request(ctx, p, Want{}, 0); !errors.Is(err, reason) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		// What was being opened serves the next one.
		if err := request(t.Context(), p, Want{}, 0); err != nil || time.Since(start) != 5*time.Second || len(o.opened()) != 1 {
			t.Errorf("after %v, %d connections: %v", time.Since(start), len(o.opened()), err)
		}
	})
}

func TestWarmConnections(t *testing.T) {
	o := &origin{limit: 100, takes: 300 * time.Millisecond}
	bubble(t, o, Config{IdleTimeout: time.Minute}, func(t *testing.T, p *Pool) {
		p.Keep(1)
		time.Sleep(time.Second)
		start := time.Now()
		if err := request(t.Context(), p, Want{}, 0); err != nil || time.Since(start) != 0 {
			t.Errorf("a warm request took %v: %v", time.Since(start), err)
		}
		time.Sleep(time.Hour) // kept, whatever the idle limit says
		if n := len(o.opened()); n != 1 {
			t.Errorf("%d connections after an hour", n)
		}
		o.opened()[0].die(errGone) // replaced at once
		time.Sleep(time.Second)
		start = time.Now()
		if err := request(t.Context(), p, Want{}, 0); err != nil || time.Since(start) != 0 || len(o.opened()) != 2 {
			t.Errorf("after its end a request took %v with %d connections: %v", time.Since(start), len(o.opened()), err)
		}
		p.Keep(0)
		time.Sleep(2 * time.Minute)
		if !p.Idle() {
			t.Error("an idle connection outlives its limit")
		}
	})
}

// An hour ago the server closed an idle connection after 60 s: those that are
// kept are replaced before that, make before break.
func TestIdleLimitIsLearned(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		p.Keep(1)
		synctest.Wait()
		time.Sleep(60 * time.Second)
		o.opened()[0].die(errGone)
		synctest.Wait()
		for range 100 { // the second one, and those after it
			time.Sleep(10 * time.Second)
			conns := o.opened()
			for i, c := range conns {
				if c.closed && i > 0 {
					t.Fatal("a connection was closed by the server once more")
				}
			}
			if err := request(t.Context(), p, Want{}, 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(49 * time.Second)
		if n := len(o.opened()); n < 3 {
			t.Errorf("%d connections: an idle one is older than 48 s", n)
		}
	})
}

func TestOpeningAheadOfNeedPauses(t *testing.T) {
	o := &origin{limit: 100, fail: errors.New("down")}
	var count atomic.Int32
	open := func(ctx context.Context, h1 bool, changed func()) (Conn, Info, error) {
		count.Add(1)
		return o.open(ctx, h1, changed)
	}
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Open: open})
		p.Keep(1)
		time.Sleep(10 * time.Minute)
		tries := int(count.Load())
		if tries < 20 || tries > 60 {
			t.Errorf("%d tries in ten minutes", tries)
		}
		if err := request(t.Context(), p, Want{}, 0); err == nil || int(count.Load()) != tries+1 {
			t.Errorf("a request does not wait for the pause: %d tries, %v", int(count.Load())-tries, err)
		}
		p.Close()
	})
}

func TestUploadsKeepAway(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{MaxConnections: 2}, func(t *testing.T, p *Pool) {
		release := make(chan struct{})
		p.cfg.Open = func(ctx context.Context, h1 bool, changed func()) (Conn, Info, error) {
			c, info, err := o.open(ctx, h1, changed)
			return &slowUpload{c.(*fakeConn), release}, info, err
		}
		for range 3 { // uploads whose answers take their time
			go func() {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x.test/", nil)
				if resp, err := p.RoundTrip(req, Want{Class: Batch, Bulk: true}); err == nil {
					_ = resp.Body.Close()
				}
			}()
			synctest.Wait()
		}
		if n := len(o.opened()); n != 1 {
			t.Errorf("uploads use %d connections", n)
		}
		for range 5 {
			go func() { _ = request(t.Context(), p, Want{Class: Interactive}, time.Second) }()
			synctest.Wait()
		}
		conns := o.opened()
		if len(conns) != 2 || conns[0].served != 3 || conns[1].served != 5 {
			t.Errorf("%d connections", len(conns))
		}
		close(release)
		time.Sleep(2 * time.Second)
	})
}

// slowUpload answers uploads late.
type slowUpload struct {
	*fakeConn
	release chan struct{}
}

func (c *slowUpload) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.fakeConn.RoundTrip(req)
	if req.Method == http.MethodPost {
		<-c.release
	}
	return resp, err
}

// extended is a connection that offers extended CONNECT.
type extended struct{ *fakeConn }

func (extended) ExtendedConnect() bool { return true }

// TestTunnelsLeaveRoom: they take no more than half of the places, use what is there
// only, and keep away from uploads and from those that may be dead.
func TestTunnelsLeaveRoom(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{MaxStreams: 10}, func(t *testing.T, p *Pool) {
		p.cfg.Open = func(ctx context.Context, h1 bool, changed func()) (Conn, Info, error) {
			c, info, err := o.open(ctx, h1, changed)
			return extended{c.(*fakeConn)}, info, err
		}
		tunnel := func() (*http.Response, bool) {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodConnect, "http://x.test/", nil)
			resp, sent, err := p.Extended(req)
			if err != nil {
				t.Error(err)
			}
			return resp, sent
		}
		if _, sent := tunnel(); sent || len(o.opened()) != 0 {
			t.Errorf("sent %v, %d connections opened for a tunnel", sent, len(o.opened()))
		}
		_ = request(t.Context(), p, Want{}, 0)
		var open []*http.Response
		for {
			resp, sent := tunnel()
			if !sent {
				break
			}
			open = append(open, resp)
		}
		if len(open) != 5 {
			t.Errorf("%d tunnels in 10 places", len(open))
		}
		var rest sync.WaitGroup
		for range 5 {
			rest.Go(func() {
				if err := request(t.Context(), p, Want{}, time.Second); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // one that enters has two places for a moment, and may open a connection
		}
		rest.Wait()
		if n := len(o.opened()); n != 1 {
			t.Errorf("%d connections", n)
		}
		for _, resp := range open {
			_ = resp.Body.Close()
		}
		m := p.multi[0]
		for name, set := range map[string]func(bool){"suspect": func(on bool) { m.suspect = on }, "old": func(on bool) { m.old = on },
			"beside an upload": func(on bool) { m.bulk = map[bool]int{true: 1}[on] }} {
			set(true)
			if _, sent := tunnel(); sent {
				t.Errorf("%s: sent", name)
			}
			set(false)
		}
	})
}

func TestSuspectIsAvoided(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		_ = request(t.Context(), p, Want{}, 0)
		first := o.opened()[0]
		p.Suspect(first)
		_ = request(t.Context(), p, Want{}, 0)
		if conns := o.opened(); len(conns) != 2 || first.served != 1 {
			t.Errorf("%d connections, the first served %d", len(conns), first.served)
		}
		p.Clear(first)
		_ = burst(t, p, 10, Want{}, time.Second)
		if first.served == 1 {
			t.Error("a cleared connection is not used")
		}
	})
}

// The path is down: the connection is suspect and no other one can be had. That
// is what the request is told, not that it waited.
func TestSuspectAndNoOtherOne(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		_ = request(t.Context(), p, Want{}, 0)
		p.Suspect(o.opened()[0])
		down := errors.New("no way there")
		o.setFail(down)
		start := time.Now()
		if err := request(t.Context(), p, Want{}, 0); !errors.Is(err, down) || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// A WebSocket over HTTP/1.1 serves nobody who wants HTTP/2.
func TestUpgradeIsNoHopeForOthers(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		_ = request(t.Context(), p, Want{}, 0)
		go func() { _ = request(t.Context(), p, Want{H1: true}, time.Minute) }()
		synctest.Wait()
		o.opened()[0].die(errGone)
		down := errors.New("no way there")
		o.setFail(down)
		if err := request(t.Context(), p, Want{}, 0); !errors.Is(err, down) {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}

// Better beside an upload than not at all, or late.
func TestUrgentSharesIfItMust(t *testing.T) {
	for name, change := range map[string]func(o *origin){
		"no other one can be had": func(o *origin) { o.setFail(errors.New("down")) },
		"the other one is late":   func(o *origin) { o.takes = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			o := &origin{limit: 100}
			bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
				release := make(chan struct{})
				p.cfg.Open = func(ctx context.Context, h1 bool, changed func()) (Conn, Info, error) {
					c, info, err := o.open(ctx, h1, changed)
					if err != nil {
						return nil, info, err
					}
					return &slowUpload{c.(*fakeConn), release}, info, nil
				}
				go func() {
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x.test/", nil)
					if resp, err := p.RoundTrip(req, Want{Bulk: true}); err == nil {
						_ = resp.Body.Close()
					}
				}()
				synctest.Wait()
				change(o)
				start := time.Now()
				if err := request(t.Context(), p, Want{Class: Interactive}, 0); err != nil || time.Since(start) > sharePatience {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
				close(release)
			})
		})
	}
}

// Nobody overtakes a more urgent request that waits.
func TestNobodyOvertakes(t *testing.T) {
	o := &origin{limit: 1}
	bubble(t, o, Config{MaxH1Connections: 1}, func(t *testing.T, p *Pool) {
		go func() { _ = request(t.Context(), p, Want{}, time.Second) }()
		synctest.Wait()
		var first sync.Map
		for _, class := range []Class{Interactive, Batch} {
			go func() {
				if err := request(t.Context(), p, Want{Class: class}, time.Second); err == nil {
					first.LoadOrStore("done", class)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		if got, _ := first.Load("done"); got != Interactive {
			t.Errorf("class %v was served first", got)
		}
	})
}

// A connection that is busy when the network changes, or when the pool closes,
// serves nothing more.
func TestBusyConnectionEndsAfterRenewAndClose(t *testing.T) {
	for name, end := range map[string]func(*Pool){"renew": (*Pool).Renew, "close": (*Pool).Close} {
		t.Run(name, func(t *testing.T) {
			o := &origin{limit: 1}
			bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
				done := make(chan error, 1)
				go func() { done <- request(t.Context(), p, Want{}, time.Second) }()
				synctest.Wait()
				end(p)
				if err := <-done; err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if c := o.opened()[0]; !c.shut {
					t.Error("the connection stays open")
				}
			})
		})
	}
}

// New ones first: while they are being opened, the old ones serve.
func TestRenewMakesBeforeItBreaks(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		p.Keep(1)
		synctest.Wait()
		o.takes = 300 * time.Millisecond
		p.Renew()
		start := time.Now()
		if err := request(t.Context(), p, Want{}, 0); err != nil || time.Since(start) != 0 {
			t.Errorf("meanwhile a request took %v: %v", time.Since(start), err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		conns := o.opened()
		if len(conns) != 2 || !conns[0].shut {
			t.Fatalf("%d connections", len(conns))
		}
		if _ = request(t.Context(), p, Want{}, 0); conns[1].served != 1 {
			t.Error("the new one is not used")
		}
	})
}

func TestRenewCutsNothing(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		p.Keep(1)
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- request(t.Context(), p, Want{}, time.Minute) }()
		synctest.Wait()
		p.Renew()
		synctest.Wait()
		conns := o.opened()
		if len(conns) != 2 || conns[0].closed || !conns[0].shut {
			t.Errorf("%d connections; the old one: %+v", len(conns), conns[0])
		}
		_ = request(t.Context(), p, Want{}, 0)
		if conns[1].served != 1 {
			t.Error("a new request went over an old connection")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestUpgradesHaveConnectionsOfTheirOwn(t *testing.T) {
	o := &origin{limit: 100}
	bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
		_ = request(t.Context(), p, Want{}, 0)
		for _, err := range burst(t, p, 3, Want{H1: true}, time.Second) {
			if err != nil {
				t.Error(err)
			}
		}
		conns := o.opened()
		if len(conns) != 4 || conns[0].served != 1 {
			t.Errorf("%d connections, the first served %d", len(conns), conns[0].served)
		}
		if err := request(t.Context(), p, Want{}, 0); err != nil || conns[0].served != 2 {
			t.Errorf("an ordinary request after upgrades: %v", err)
		}
	})
}

// Whatever happens in whatever order: no limit is passed, nobody is lost, and
// nothing is left.
func TestEverythingInAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]int{1, 2, 10}).Draw(rt, "limit")
		maxConns := rapid.IntRange(1, 4).Draw(rt, "connections")
		steps := rapid.SliceOfN(rapid.IntRange(0, 11), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			o := &origin{limit: limit, takes: 10 * time.Millisecond}
			p := New(Config{Open: o.open, MaxConnections: maxConns, MaxH1Connections: maxConns, QueueTimeout: 5 * time.Second})
			var all sync.WaitGroup
			for i, step := range steps {
				switch step {
				case 0, 1, 2, 3, 4:
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+step)*50*time.Millisecond)
					want := Want{Class: Class(step % 3), Bulk: step == 4, H1: step == 3}
					all.Go(func() {
						defer cancel()
						_ = request(ctx, p, want, time.Duration(i%5)*20*time.Millisecond)
					})
				case 5:
					if conns := o.opened(); len(conns) > 0 {
						conns[i%len(conns)].die(errGone)
					}
				case 6:
					o.setFail(errors.New("down"))
				case 7:
					o.setFail(nil)
				case 8:
					p.Renew()
				case 9:
					p.Keep(i % 3)
				case 10:
					if conns := o.opened(); len(conns) > 0 {
						p.Suspect(conns[i%len(conns)])
					}
				case 11:
					for _, c := range o.opened() {
						p.Clear(c)
					}
				}
				time.Sleep(time.Duration(i%3) * 7 * time.Millisecond)
				p.mu.Lock()
				if len(p.multi) > 2*maxConns || p.single > maxConns {
					t.Errorf("step %d: %d and %d connections of %d", i, len(p.multi), p.single, maxConns)
				}
				p.mu.Unlock()
			}
			all.Wait()
			for _, c := range o.opened() {
				if c.inFlight != 0 || c.most > c.limit {
					t.Errorf("%d in flight, %d at most of %d", c.inFlight, c.most, c.limit)
				}
			}
			o.setFail(nil)
			for _, c := range o.opened() {
				p.Clear(c)
			}
			if err := request(t.Context(), p, Want{}, 0); err != nil {
				t.Errorf("the pool does not work any more: %v", err)
			}
			p.Close()
			synctest.Wait()
			if len(p.leaving) > 0 || p.waiting() > 0 || p.opening != [2]int{} {
				t.Errorf("left: %d leaving, %d waiting, opening %v", len(p.leaving), p.waiting(), p.opening)
			}
		})
	})
}

func BenchmarkWarmPick(b *testing.B) {
	for name, limit := range map[string]int{"multiplexed": 1 << 20, "one by one": 1} {
		b.Run(name, func(b *testing.B) {
			p := New(Config{Open: (&origin{limit: limit}).open})
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				g, err := p.acquire(b.Context(), Want{})
				if err != nil {
					b.Fatal(err)
				}
				p.giveBack(g.m, Want{})
			}
		})
	}
}

// TestWhatThePeerHasEndedIsNotUsed: the process stood still while the peer closed what was
// idle, and a request comes before the readers hear of it.
func TestWhatThePeerHasEndedIsNotUsed(t *testing.T) {
	for name, limit := range map[string]int{"HTTP/1.1": 1, "multiplexed": 100} {
		t.Run(name, func(t *testing.T) {
			o := &origin{limit: limit}
			bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
				for _, err := range burst(t, p, 3, Want{}, time.Second) {
					if err != nil {
						t.Fatal(err)
					}
				}
				<-time.After(restedAfter)
				old := o.opened()
				served := 0
				for _, c := range old {
					c.mu.Lock()
					c.ended = true
					served += c.served
					c.mu.Unlock()
				}
				if err := request(t.Context(), p, Want{}, time.Second); err != nil {
					t.Fatal(err)
				}
				if n := len(o.opened()); n != len(old)+1 {
					t.Errorf("%d connections opened after %d", n-len(old), len(old))
				}
				for _, c := range old {
					served -= c.served
				}
				if served != 0 {
					t.Errorf("%d requests over connections that had ended", -served)
				}
			})
		})
	}
}

// TestWhatEndsAtOnceIsNotReopenedAtOnce: what accepts connections is a proxy without a
// server behind it, and closes each at once.
func TestWhatEndsAtOnceIsNotReopenedAtOnce(t *testing.T) {
	for name, limit := range map[string]int{"HTTP/1.1": 1, "multiplexed": 100} {
		t.Run(name, func(t *testing.T) {
			o := &origin{takes: time.Millisecond, limit: limit}
			bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
				p.Keep(1)
				healthy := make(chan struct{})
				go func() {
					for dead := 0; ; {
						select {
						case <-healthy:
							return
						case <-time.After(time.Millisecond):
						}
						for _, c := range o.opened()[dead:] {
							c.die(errGone)
							dead++
						}
					}
				}()
				<-time.After(10 * time.Minute)
				n := len(o.opened())
				if n < 20 || n > 60 { // 20 s at the least, 30 s at the most
					t.Errorf("%d connections in ten minutes", n)
				}
				close(healthy)
				<-time.After(pauseMax)
				if err := request(t.Context(), p, Want{}, time.Second); err != nil {
					t.Fatal(err)
				}
				<-time.After(idleLimitMin)
				conns := o.opened()
				for _, c := range conns[n:] {
					c.die(errGone) // they were of use, or lasted: the next one at once
				}
				<-time.After(2 * time.Millisecond)
				if again := len(o.opened()); again != len(conns)+1 {
					t.Errorf("%d connections at once after the end of good ones, want 1", again-len(conns))
				}
			})
		})
	}
}
