// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A gated upstream answers each request when it is told to, and knows how many run.
type gated struct {
	addr    string
	arrived chan string // path of each request that has come
	answer  chan struct{}
	running atomic.Int32
	most    atomic.Int32
}

func startGated(t testing.TB) *gated {
	t.Helper()
	g := &gated{arrived: make(chan string, 1000), answer: make(chan struct{})}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := g.running.Add(1)
		defer g.running.Add(-1)
		for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); most = g.most.Load() {
		}
		g.arrived <- r.URL.Path
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush() // the head says nothing of the end
		select {
		case <-g.answer:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte("done"))
	}))
	g.addr = strings.TrimPrefix(srv.URL, "http://")
	t.Cleanup(srv.Close)
	return g
}

// limits reads what the status says of the limits of upstream "up".
func (r *rig) limits() (l struct {
	Concurrency      int
	Running, Waiting map[string]int
	PausedFor        string `json:"paused_for"`
	Provider         map[string]struct{ Limit, Remaining int }
}) {
	r.t.Helper()
	var st struct {
		Upstreams []struct {
			Name   string
			Limits json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(r.get("/v1/status")), &st); err != nil {
		r.t.Fatal(err)
	}
	for _, u := range st.Upstreams {
		if u.Name == "up" && u.Limits != nil {
			if err := json.Unmarshal(u.Limits, &l); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	return l
}

// waitFor waits until a condition holds.
func (r *rig) waitFor(what string, holds func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			r.t.Fatalf("never: %s", what)
		}
	}
}

// TestALimitOfRequestsIsKept: one runs until its body has ended, the most urgent of the
// others is next, and limits change while requests run and wait.
func TestALimitOfRequestsIsKept(t *testing.T) {
	up := startGated(t)
	r := start(t, up.addr, "defaults: {pool: {warm: 0}, limits: {concurrency: 1, queue_timeout: 1h}}\n")
	var calls sync.WaitGroup
	begin := func(path, class string) {
		calls.Go(func() {
			if status, body := r.prioritised(path, class); status != 200 || body != "done" {
				t.Errorf("%s: %d %s", path, status, body)
			}
		})
	}
	begin("/up/first", "batch")
	<-up.arrived
	for _, class := range []string{"batch", "default", "interactive"} {
		begin("/up/"+class, class)
		r.waitFor(class+" waits", func() bool { return r.limits().Waiting[class] == 1 })
	}
	r.metric(`warmwire_limit_requests{class="batch",state="running",upstream="up"} 1`)
	r.metric(`warmwire_limit_requests{class="interactive",state="waiting",upstream="up"} 1`)
	r.metric(`warmwire_limit_concurrency{upstream="up"} 1`)
	up.answer <- struct{}{}
	if path := <-up.arrived; path != "/interactive" {
		t.Errorf("%s is next, want /interactive", path)
	}
	r.tune("upstreams.up.limits.concurrency", "2")
	if path := <-up.arrived; path != "/default" {
		t.Errorf("%s is next, want /default", path)
	}
	r.tune("upstreams.up.limits.concurrency", "0") // no limit any more: nobody is forgotten
	if path := <-up.arrived; path != "/batch" {
		t.Errorf("%s is next, want /batch", path)
	}
	close(up.answer)
	calls.Wait()
	if n := up.most.Load(); n != 3 {
		t.Errorf("%d ran at once, want 3", n)
	}
	r.metric(`warmwire_limit_waits_total{class="interactive",upstream="up"} 1`)
}

// TestAWaitThatIsTooLongIsRefusedInTheDialectsShape: 503, Retry-After, nothing sent.
func TestAWaitThatIsTooLongIsRefusedInTheDialectsShape(t *testing.T) {
	up := startGated(t)
	r := start(t, up.addr, "upstreams: {up: {url: 'http://UPSTREAM', dialect: anthropic, pool: {warm: 0}, limits: {concurrency: 1, queue: 1, queue_timeout: 50ms}}}\n")
	var calls sync.WaitGroup
	calls.Go(func() { r.prioritised("/up/first", "") })
	<-up.arrived
	resp, err := http.Get("http://" + r.addr + "/up/second")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var body struct {
		Type  string
		Error struct{ Type, Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || resp.Header.Get("X-Should-Retry") != "true" ||
		body.Type != "error" || !strings.Contains(body.Error.Message, "limits.queue_timeout") {
		t.Errorf("%d, %v, %+v", resp.StatusCode, resp.Header, body)
	}
	close(up.answer)
	calls.Wait()
	if n := up.most.Load(); n != 1 {
		t.Errorf("%d ran at once, want 1", n)
	}
	r.metric(`warmwire_limit_refusals_total{reason="upstream_limit_queue_timeout",tenant="none",upstream="up"} 1`)
}

// TestTheAPIsOwnLimitIsWaitedFor: after a 429 that asks for a second nothing is sent until
// it is over, and what the API says is left is kept to: its second request is the last one.
func TestTheAPIsOwnLimitIsWaitedFor(t *testing.T) {
	var mu sync.Mutex
	var at []time.Time
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		at = append(at, time.Now())
		if len(at) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("X-Ratelimit-Limit-Requests", "60")
		w.Header().Set("X-Ratelimit-Remaining-Requests", fmt.Sprint(max(0, 3-len(at))))
		w.Header().Set("X-Ratelimit-Reset-Requests", "60s")
	}))
	defer srv.Close()
	r := start(t, strings.TrimPrefix(srv.URL, "http://"), "defaults: {pool: {warm: 0}, limits: {pace: true, queue_timeout: 1h}}\n")
	for i, want := range []int{429, 200, 200, 200} {
		if status, _ := r.call("/up/x"); status != want {
			t.Errorf("call %d: %d, want %d", i, status, want)
		}
		if i == 0 && r.limits().PausedFor == "" {
			t.Error("the status does not say that the upstream is left alone")
		}
	}
	if d := at[1].Sub(at[0]); d < time.Second {
		t.Errorf("the second request came %v after a 429 that asked for 1s", d)
	}
	if d := at[3].Sub(at[2]); d < 900*time.Millisecond { // one of 60 a minute, since the one before began
		t.Errorf("with nothing left and one more each second, the next request came after %v", d)
	}
	if p := r.limits().Provider["requests"]; p.Limit != 60 {
		t.Errorf("the status says of the API's limit: %+v", p)
	}
}

// TestManyCallsAtAnHTTP2UpstreamThatAllowsFew: 200 calls at once to one that allows ten
// streams a connection (case B136). All are served, no more than the limit at once.
func TestManyCallsAtAnHTTP2UpstreamThatAllowsFew(t *testing.T) {
	var running, most atomic.Int32
	full := make(chan struct{}) // closed once the limit is in use
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == 25 {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		select {
		case <-full:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte("done"))
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 10}
	srv.Start()
	defer srv.Close()
	r := start(t, strings.TrimPrefix(srv.URL, "http://"), "defaults: {protocols: [h2], pool: {warm: 0}, limits: {concurrency: 25, queue_timeout: 1h}}\n")
	var calls sync.WaitGroup
	for range 200 {
		calls.Go(func() {
			if status, body := r.call("/up/x"); status != 200 || body != "done" {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	calls.Wait()
	if n := most.Load(); n != 25 {
		t.Errorf("%d ran at once, want 25", n)
	}
}

// BenchmarkCallWithLimits is one whole call, through the whole program, without limits
// and with all of them.
func BenchmarkCallWithLimits(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<10)) }))
	b.Cleanup(srv.Close)
	for _, row := range []struct{ name, limits string }{{"without", "{}"}, {"with", "{concurrency: 100, adaptive: true, pace: true}"}} {
		b.Run(row.name, func(b *testing.B) {
			r := start(b, strings.TrimPrefix(srv.URL, "http://"), "defaults: {pool: {warm: 0}, limits: "+row.limits+"}\nlog: {access: {sample: 0}}\n")
			for b.Loop() {
				if status, _ := r.call("/up/x"); status != 200 {
					b.Fatal(status)
				}
			}
		})
	}
}

const neighbours = `
upstreams: {up: {url: 'http://UPSTREAM', pool: {warm: 0}, limits: {concurrency: 1, queue: 2, queue_timeout: 1h}}}
tenants:
  big: {tokens: [PLANTED-token-of-big], roles: [all], priority: batch}
  small: {tokens: [PLANTED-token-of-small], roles: [all], priority: batch, weight: 2}
roles:
  all: {upstreams: [up]}
`

// TestTenantsShareAFullQueue: the tenant with most makes room for the other, and hears 429
// when it comes with more than its part; nobody claims more than its tenant's class.
func TestTenantsShareAFullQueue(t *testing.T) {
	up := startGated(t)
	r := start(t, up.addr, neighbours)
	type answer struct {
		status int
		after  string
		body   string
	}
	answers := make(chan answer, 10)
	var calls sync.WaitGroup
	begin := func(tenant, path string) {
		calls.Go(func() {
			req, err := http.NewRequest(http.MethodPost, "http://"+r.addr+path, nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer PLANTED-token-of-"+tenant)
			req.Header.Set("Warmwire-Priority", "interactive") // batch is the most it may claim
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			text, _ := io.ReadAll(resp.Body)
			answers <- answer{resp.StatusCode, resp.Header.Get("Retry-After"), string(text)}
		})
	}
	waiting := func(n int) {
		t.Helper()
		r.waitFor(fmt.Sprintf("%d of batch wait", n), func() bool { return r.limits().Waiting["batch"] == n })
	}
	begin("big", "/up/runs")
	<-up.arrived
	begin("big", "/up/first")
	waiting(1)
	begin("big", "/up/second")
	waiting(2)
	begin("small", "/up/small") // in the place of the second
	if a := <-answers; a.status != 503 || a.after == "" || !strings.Contains(a.body, "upstream_limit_queue_full") {
		t.Errorf("big's newest request got %+v, want 503", a)
	}
	begin("big", "/up/third")
	if a := <-answers; a.status != 429 || a.after == "" || !strings.Contains(a.body, "tenant_over_share") {
		t.Errorf("big's next request got %+v, want 429", a)
	}
	r.metric(`warmwire_limit_refusals_total{reason="tenant_over_share",tenant="big",upstream="up"} 1`)
	if status := r.get("/v1/status"); !strings.Contains(status, `"small"`) || strings.Contains(status, "PLANTED") {
		t.Errorf("the status has no small, or a token: %s", status)
	}
	close(up.answer)
	calls.Wait()
	close(answers)
	for a := range answers {
		if a.status != 200 {
			t.Errorf("who waited got %+v", a)
		}
	}
}
