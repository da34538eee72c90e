// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/retry"
)

// A model answers after a time that is drawn for each attempt, and notes what became
// of the attempts.
type model struct {
	hook      func(*http.Request) // nil = none
	mu        sync.Mutex          // guards the fields below
	takes     []time.Duration
	gives     []func() (*http.Response, error) // nil = 200
	arrived   int
	cancelled []int // attempts
	bodies    []string
	open      int // bodies that were not closed
}

func (m *model) RoundTrip(req *http.Request) (*http.Response, error) {
	if m.hook != nil {
		m.hook(req)
	}
	m.mu.Lock()
	n := m.arrived
	m.arrived++
	takes, gives := 100*time.Millisecond, answers(200, "fine")
	if n < len(m.takes) {
		takes = m.takes[n]
	}
	if n < len(m.gives) && m.gives[n] != nil {
		gives = m.gives[n]
	}
	m.mu.Unlock()
	body := ""
	if req.Body != nil {
		b, _ := io.ReadAll(req.Body)
		body = string(b)
		_ = req.Body.Close()
	}
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
		m.mu.Lock()
		defer m.mu.Unlock()
		m.cancelled = append(m.cancelled, n)
		return nil, context.Cause(req.Context())
	}
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotFirstResponseByte != nil {
		trace.GotFirstResponseByte()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bodies = append(m.bodies, body)
	resp, err := gives()
	if err == nil {
		m.open++
		resp.Body = &counted{resp.Body, m, req.Context()}
	}
	return resp, err
}

// counted is a body that ends with its attempt's context.
type counted struct {
	io.ReadCloser
	m   *model
	ctx context.Context
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.ReadCloser.Read(p)
}

func (c *counted) Close() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.open--
	return nil
}

// taught returns a layer that has learned heads of 100 ms, and its decisions.
func taught(t *testing.T, m *model, cfg retry.Config) (*retry.Transport, *decisions) {
	t.Helper()
	d := &decisions{}
	cfg.Hedge, cfg.OnAttempt = true, d.note
	tr := newTransport(t, m, cfg)
	for range 100 {
		resp, err := tr.RoundTrip(post("x"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	d.all, m.arrived, m.bodies = nil, 0, nil
	return tr, d
}

func TestHedge(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name     string
		takes    []time.Duration
		gives    []func() (*http.Response, error)
		took     time.Duration
		status   int
		verdicts []string
		lost     []int // attempts that were cancelled
	}{
		{"in time", []time.Duration{101 * ms}, nil, 101 * ms, 200, nil, nil},
		{"the second is first", []time.Duration{time.Minute, 100 * ms}, nil, 100 * ms, 200, []string{"slow hedged", "slow hedge_won"}, []int{0}},
		{"the first is first", []time.Duration{150 * ms, time.Minute}, nil, 150 * ms, 200, []string{"slow hedged", "slow hedge_lost"}, []int{1}},
		{"the second is refused", []time.Duration{time.Second, 10 * ms}, []func() (*http.Response, error){nil, answers(429, "busy")}, time.Second, 200, []string{"slow hedged", "slow hedge_lost"}, nil},
		{"the second fails", []time.Duration{time.Second, 10 * ms}, []func() (*http.Response, error){nil, fails(errCut)}, time.Second, 200, []string{"slow hedged", "slow hedge_lost"}, nil},
		{"the first fails", []time.Duration{200 * ms, time.Second}, []func() (*http.Response, error){fails(errCut), nil}, time.Second, 200, []string{"slow hedged", "slow hedge_won"}, nil},
		{"both are refused", []time.Duration{200 * ms, time.Second}, []func() (*http.Response, error){answers(503, "one"), answers(503, "two")}, time.Second, 503, []string{"slow hedged", "slow hedge_lost", "answered disabled"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{}
				tr, d := taught(t, m, retry.Config{})
				m.takes, m.gives = tt.takes, tt.gives
				start := time.Now()
				resp, err := tr.RoundTrip(post("question"))
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(start)
				if late := took - tt.took; late < 0 || late > 135*ms { // learned: 100 ms, and up to a fifth more
					t.Errorf("took %v, want %v and at most the learned percentile more", took, tt.took)
				}
				if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != tt.status {
					t.Errorf("got %d %q, %v; want %d", resp.StatusCode, got, err, tt.status)
				}
				_ = resp.Body.Close()
				if err := tr.Close(); err != nil { // waits for the loser
					t.Fatal(err)
				}
				if !slices.Equal(d.verdicts(), tt.verdicts) {
					t.Errorf("decided %v, want %v", d.verdicts(), tt.verdicts)
				}
				if !slices.Equal(m.cancelled, tt.lost) || m.open != 0 {
					t.Errorf("cancelled %v, want %v; %d answers left open", m.cancelled, tt.lost, m.open)
				}
				for _, b := range m.bodies {
					if b != "question" {
						t.Errorf("an attempt got the body %q", b)
					}
				}
				if time.Since(start) != took {
					t.Errorf("the loser went on for %v", time.Since(start)-took)
				}
			})
		})
	}
}

// A hedge that is answered before it has read its body has all of it after that.
func TestAHedgeKeepsItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{}
		books := newLedger(1 << 20)
		tr, _ := taught(t, m, retry.Config{Take: books.take, Give: books.give})
		var late io.ReadCloser
		m.takes = []time.Duration{time.Minute}
		m.gives = []func() (*http.Response, error){nil, answers(200, "early")}
		m.hook = func(req *http.Request) {
			if m.arrived == 1 {
				late, req.Body = req.Body, nil
			}
		}
		resp, err := tr.RoundTrip(post("question"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(late); err != nil || string(got) != "question" {
			t.Errorf("the hedge read %q, %v", got, err)
		}
		_ = late.Close()
		_ = resp.Body.Close()
		if books.held.Load() != 0 {
			t.Errorf("%d bytes were not given back", books.held.Load())
		}
	})
}

// Hedges have a budget of their own, which nothing exceeds.
func TestHedgesKeepToTheirBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{}
		tr, d := taught(t, m, retry.Config{HedgeBudget: 0.1})
		var slow []time.Duration
		for range 1000 {
			slow = append(slow, time.Second)
		}
		m.takes = slow
		var wg sync.WaitGroup
		for range 400 {
			wg.Go(func() {
				if resp, err := tr.RoundTrip(post("x")); err == nil {
					_ = resp.Body.Close()
				}
			})
		}
		wg.Wait()
		hedged := 0
		for _, v := range d.verdicts() {
			if v == "slow hedged" {
				hedged++
			}
		}
		if most := (400 + 100) / 10; hedged > most || hedged < most/2 {
			t.Errorf("%d hedges for 400 calls, want at most %d and some", hedged, most)
		}
	})
}

// No hedge beside an upload that is not over, an upgrade, or an answer of which the
// app has seen something.
func TestWhatIsNotHedged(t *testing.T) {
	early := func(req *http.Request) { // as the way out relays a 103
		if hook := httptrace.ContextClientTrace(req.Context()).Got1xxResponse; hook != nil {
			_ = hook(103, nil)
		}
	}
	tests := []struct {
		name  string
		body  bool
		field string
		hook  func(*http.Request)
	}{
		{"body not over", true, "", nil},
		{"upgrade", false, "Upgrade", nil},
		{"interim answer", false, "", early},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{}
				tr, d := taught(t, m, retry.Config{})
				req := post("")
				req.Body, req.ContentLength = nil, 0
				if tt.body {
					pr, pw := io.Pipe()
					time.AfterFunc(time.Minute, func() { _ = pw.Close() })
					req.Body, req.ContentLength = pr, -1
				}
				if tt.field != "" {
					req.Header.Set(tt.field, "websocket")
				}
				m.takes = []time.Duration{time.Second}
				if tt.hook != nil {
					req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { return nil }}))
					m.gives = []func() (*http.Response, error){answers(200, "")}
				}
				m.hook = tt.hook
				start := time.Now()
				resp, err := tr.RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				if len(d.verdicts()) != 0 || m.arrived != 1 || time.Since(start) < time.Second {
					t.Errorf("decided %v and made %d attempts, want one attempt", d.verdicts(), m.arrived)
				}
			})
		})
	}
}

// The caller's hooks never hear of a hedge, and of an attempt that is over neither.
func TestHooksFollowTheAttemptThatCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{}
		tr, _ := taught(t, m, retry.Config{})
		m.takes = []time.Duration{time.Minute, 100 * time.Millisecond}
		var first []time.Duration
		start := time.Now()
		req := post("x")
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			GotFirstResponseByte: func() { first = append(first, time.Since(start)) }}))
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want := time.Since(start); len(first) != 1 || first[0] != want {
			t.Errorf("the first byte was told of at %v, want once, at %v", first, want)
		}
	})
}

// An upload of an abandoned attempt ends late: the caller must not take that for the
// end of its next one.
func TestLateHooksOfAnAbandonedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late sync.WaitGroup
		attempt := 0
		up := way(func(out *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(out.Context())
			trace.GotConn(httptrace.GotConnInfo{})
			if attempt++; attempt == 1 {
				late.Go(func() {
					time.Sleep(time.Second) // the bubble's clock
					trace.WroteRequest(httptrace.WroteRequestInfo{Err: errors.New("late")})
					_ = trace.Got1xxResponse(103, nil)
				})
				return nil, errRefusedStream
			}
			time.Sleep(2 * time.Second)
			trace.WroteRequest(httptrace.WroteRequestInfo{})
			trace.GotFirstResponseByte()
			return answer(200, ""), nil
		})
		var heard []string
		note := func(what string) { heard = append(heard, what) }
		req := post("x")
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			GotConn:              func(httptrace.GotConnInfo) { note("conn") },
			WroteRequest:         func(info httptrace.WroteRequestInfo) { note("wrote") },
			GotFirstResponseByte: func() { note("first") },
			Got1xxResponse:       func(int, textproto.MIMEHeader) error { note("interim"); return nil },
		}))
		if _, err := newTransport(t, up, retry.Config{}).RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		late.Wait()
		if want := []string{"conn", "conn", "wrote", "first"}; !slices.Equal(heard, want) {
			t.Errorf("the caller heard %v, want %v", heard, want)
		}
	})
}

// What the app has seen of an answer, or was asked to hold back because of it, stands
// in the way of another attempt.
func TestNoAttemptAfterTheAppHasSeenSomething(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(*http.Request)
		interim int
		want    string
	}{
		{"100", nil, 100, "try_later retried"},
		{"103", nil, 103, "try_later not_replayable"},
		{"102", nil, 102, "try_later not_replayable"},
		{"a body held back", func(r *http.Request) { r.Header.Set("Expect", "100-continue") }, 0, "try_later not_replayable"},
		{"an upgrade", func(r *http.Request) { r.Header.Set("Upgrade", "websocket") }, 0, "try_later disabled"},
		{"CONNECT", func(r *http.Request) { r.Method = http.MethodConnect }, 0, "try_later disabled"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, attempt := &decisions{}, 0
				up := way(func(out *http.Request) (*http.Response, error) {
					if attempt++; attempt > 1 {
						return answer(200, ""), nil
					}
					if tt.interim != 0 {
						_ = httptrace.ContextClientTrace(out.Context()).Got1xxResponse(tt.interim, nil)
					}
					return answer(503, "", "Retry-After", "1"), nil
				})
				req := post("x")
				req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(int, textproto.MIMEHeader) error { return nil }}))
				if tt.prepare != nil {
					tt.prepare(req)
				}
				if _, err := newTransport(t, up, all(d)).RoundTrip(req); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(d.verdicts(), ", "); got != tt.want {
					t.Errorf("decided %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// With Resets on, a connection that broke within the head of an answer is no
// connection that broke before it.
func TestACutHeadIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hooks := range []bool{true, false} {
			d := &decisions{}
			up := way(func(out *http.Request) (*http.Response, error) {
				httptrace.ContextClientTrace(out.Context()).GotFirstResponseByte()
				return nil, errCut
			})
			req := post("x")
			if hooks {
				req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{}))
			}
			_, err := newTransport(t, up, all(d)).RoundTrip(req)
			if got := strings.Join(d.verdicts(), ", "); err == nil || got != "cut_after disabled" {
				t.Errorf("hooks %v: got %v, decided %q", hooks, err, got)
			}
		}
	})
}
