// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"
)

// A server is one endpoint: it says its name, and counts.
type server struct {
	*httptest.Server
	requests, conns atomic.Int32
	fails           atomic.Bool // 503 to all
	release         chan struct{}
}

func newServer(t *testing.T, name string) *server {
	t.Helper()
	s := &server{release: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = fmt.Fprintf(w, "vllm:num_requests_waiting{engine=\"0\"} %d\n", len(name)*1000-1000) // one of a longer name is busy
			return
		}
		s.requests.Add(1)
		if r.Host != s.Listener.Addr().String() {
			t.Errorf("Host %q at %s", r.Host, s.Listener.Addr())
		}
		if s.fails.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, name+r.URL.Path)
		if strings.HasSuffix(r.URL.Path, "/long") {
			_ = http.NewResponseController(w).Flush()
			<-s.release
			_, _ = io.WriteString(w, " end")
		}
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			s.conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// closedPort is an address that refuses connections.
func closedPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	return ln.Addr().String()
}

// several is a configuration with endpoints a, b, c … at these addresses.
func several(routing string, addrs ...string) string {
	var list []string
	for i, a := range addrs {
		list = append(list, fmt.Sprintf("{name: %c, url: 'http://%s'}", 'a'+i, a))
	}
	return fmt.Sprintf("upstreams:\n  up: {url: 'http://127.0.0.1:1/base', endpoints: [%s], routing: {%s}, pool: {warm: 0}}\n", strings.Join(list, ", "), routing)
}

// endpoint reads what the status says of one.
func (r *rig) endpoint(name string) (e struct {
	Name, State, Reason string
	Weight              float64
	InFlight            int `json:"in_flight"`
	Waiting             *float64
	Results             map[string]int64
}) {
	r.t.Helper()
	var st struct {
		Upstreams []struct {
			Name    string
			Routing *struct{ Endpoints []json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(r.get("/v1/status")), &st); err != nil {
		r.t.Fatal(err)
	}
	for _, u := range st.Upstreams {
		if u.Routing == nil {
			continue
		}
		for _, raw := range u.Routing.Endpoints {
			e.Results, e.Waiting = nil, nil
			if err := json.Unmarshal(raw, &e); err != nil {
				r.t.Fatal(err)
			}
			if e.Name == name {
				return e
			}
		}
	}
	r.t.Fatalf("the status has no endpoint %s", name)
	return e
}

// TestAnEndpointThatIsDownIsNotNoticed: a request goes to another before it was sent to
// the first, in the same call, and after some failures the first is left out.
func TestAnEndpointThatIsDownIsNotNoticed(t *testing.T) {
	b := newServer(t, "b")
	r := start(t, "", several("algorithm: round_robin, eject_after: 3", closedPort(t), b.Listener.Addr().String()))
	for range 20 {
		if status, body := r.call("/up/v1/x"); status != 200 || body != "b/base/v1/x" {
			t.Fatalf("%d %q", status, body)
		}
	}
	if n := b.requests.Load(); n != 20 {
		t.Errorf("b was asked %d times for 20 calls", n)
	}
	if e := r.endpoint("a"); e.State != "ejected" || e.Reason != "connect" || e.Results["connect"] != 3 {
		t.Errorf("a: %+v, want ejected after 3", e)
	}
	r.metric(`warmwire_endpoint_ejections_total{action="ejected",endpoint="a",reason="connect",upstream="up"} 1`)
	r.metric(`warmwire_endpoint_available{endpoint="a",upstream="up"} 0`)
	r.metric(`warmwire_endpoint_attempts_total{endpoint="b",result="ok",upstream="up"} 20`)
	r.metric(`warmwire_retries_total{decision="retried",reason="unsent",upstream="up"} 3`)
}

// TestAnAnswerIsTriedElsewhereOnlyIfTheOperatorSaysSo: what was sent is sent again by
// retry alone.
func TestAnAnswerIsTriedElsewhereOnlyIfTheOperatorSaysSo(t *testing.T) {
	a, b := newServer(t, "a"), newServer(t, "b")
	a.fails.Store(true)
	more := several("algorithm: round_robin, eject_after: 0", a.Listener.Addr().String(), b.Listener.Addr().String())
	r := start(t, "", more)
	failed := 0
	for range 10 {
		if status, _ := r.call("/up/v1/x"); status == http.StatusServiceUnavailable {
			failed++
		}
	}
	if failed != 5 || a.requests.Load() != 5 || b.requests.Load() != 5 {
		t.Errorf("%d of 10 failed, a %d, b %d: want 5 each", failed, a.requests.Load(), b.requests.Load())
	}
	r.tune("upstreams.up.retry.statuses", "[503]")
	r.tune("upstreams.up.retry.base_delay", "1ms")
	r.tune("upstreams.up.retry.budget", "1")
	for range 10 {
		if status, body := r.call("/up/v1/x"); status != 200 || body != "b/base/v1/x" {
			t.Fatalf("%d %q", status, body)
		}
	}
}

// TestEndpointsAreTunedLive: weights and drains change while streams run on, and what is
// known of the endpoints stays.
func TestEndpointsAreTunedLive(t *testing.T) {
	a, b := newServer(t, "a"), newServer(t, "b")
	r := start(t, "", several("algorithm: round_robin", a.Listener.Addr().String(), b.Listener.Addr().String()))
	resp, err := http.Get("http://" + r.addr + "/up/long")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r.tune("upstreams.up.routing.drain", "[a]")
	if e := r.endpoint("a"); e.State != "draining" || e.InFlight != 1 {
		t.Errorf("a: %+v, want draining with one in flight", e)
	}
	for range 6 {
		if _, body := r.call("/up/x"); body != "b/base/x" {
			t.Fatalf("a request went to %q", body)
		}
	}
	close(a.release)
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "a/base/long end" {
		t.Errorf("the stream at the drained endpoint: %q, %v", got, err)
	}
	r.waitFor("a has nothing in flight", func() bool { return r.endpoint("a").InFlight == 0 })
	if status, body := r.post("/v1/tune?upstreams.up.routing.drain=[a,b]"); status < 400 {
		t.Errorf("all were drained: %d %s", status, body)
	}
	r.tune("upstreams.up.routing.drain", "[]")
	r.tune("upstreams.up.routing.slow_start", "0s")
	r.tune("upstreams.up.routing.weights", "{a: 4}")
	was := a.requests.Load()
	for range 20 {
		r.call("/up/x")
	}
	if got := a.requests.Load() - was; got != 16 {
		t.Errorf("a had %d of 20, want 16 with four times the weight", got)
	}
	if e := r.endpoint("a"); e.Weight != 4 {
		t.Errorf("a: %+v, want the weight 4", e)
	}
	r.waitFor("a has done 17 since the start", func() bool { return r.endpoint("a").Results["ok"] == 17 })
}

// TestReloadKeepsTheConnectionsOfEndpointsThatStay.
func TestReloadKeepsTheConnectionsOfEndpointsThatStay(t *testing.T) {
	a, b, c := newServer(t, "a"), newServer(t, "b"), newServer(t, "c")
	addr := func(s *server) string { return s.Listener.Addr().String() }
	r := start(t, "", several("algorithm: round_robin, slow_start: 0s", addr(a), addr(b)))
	for range 4 {
		r.call("/up/x")
	}
	r.write("", several("algorithm: round_robin, slow_start: 0s", addr(a), addr(c)))
	if err := r.s.Reload(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		r.call("/up/x")
	}
	if a.conns.Load() != 1 || a.requests.Load() != 4 || b.requests.Load() != 2 || c.requests.Load() != 2 {
		t.Errorf("a %d requests over %d connections, b %d, c %d: want 4 over 1, 2, 2", a.requests.Load(), a.conns.Load(), b.requests.Load(), c.requests.Load())
	}
}

// TestReportedLoadDecides: the endpoint that says it has a queue gets next to nothing.
func TestReportedLoadDecides(t *testing.T) {
	a, b := newServer(t, "busy"), newServer(t, "b")
	r := start(t, "", several("algorithm: round_robin, load_path: /metrics, load_interval: 100ms", a.Listener.Addr().String(), b.Listener.Addr().String()))
	r.waitFor("both have said something", func() bool { return r.endpoint("a").Waiting != nil && r.endpoint("b").Waiting != nil })
	for range 20 {
		r.call("/up/x")
	}
	if n := a.requests.Load(); n > 1 {
		t.Errorf("the busy one had %d of 20", n)
	}
}

// TestAWebSocketOpensAtAnEndpointThatIsThere.
func TestAWebSocketOpensAtAnEndpointThatIsThere(t *testing.T) {
	s := newSocketServer(t)
	r := start(t, "", several("algorithm: round_robin", closedPort(t), s.Listener.Addr().String()))
	for range 3 {
		c, _, err := websocket.DefaultDialer.Dial("ws://"+r.addr+"/up/v1/realtime", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.ReadMessage(); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
		if e := r.endpoint("b"); e.InFlight != 1 {
			t.Errorf("b: %+v, want one in flight", e)
		}
		_ = c.Close()
		r.waitFor("b has nothing in flight", func() bool { return r.endpoint("b").InFlight == 0 })
	}
}

// TestAResumedAnswerGoesToTheEndpointThatHasIt.
func TestAResumedAnswerGoesToTheEndpointThatHasIt(t *testing.T) {
	const events = 4
	make1 := func(other *atomic.Int32) *httptest.Server {
		var mine atomic.Bool
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			first := 0
			if r.Method == http.MethodGet {
				if !mine.Load() {
					other.Add(1)
				}
				_, _ = fmt.Sscanf(r.URL.Query().Get("starting_after"), "%d", &first)
				first++
			} else {
				mine.Store(true)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			kind := [...]string{"response.created", "response.x", "response.x", "response.completed"}[first]
			_, _ = fmt.Fprintf(w, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d,\"response\":{\"id\":\"resp_1\",\"background\":true,\"store\":true}}\n\n", kind, kind, first)
			if first < events-1 {
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		}))
	}
	var astray atomic.Int32
	a, b := make1(&astray), make1(&astray)
	defer a.Close()
	defer b.Close()
	r := start(t, "", strings.Replace(several("algorithm: round_robin, eject_after: 0", a.Listener.Addr().String(), b.Listener.Addr().String()),
		"pool:", "resume: true, retry: {base_delay: 1ms, max_delay: 5ms}, pool:", 1))
	resp, err := http.Post("http://"+r.addr+"/up/v1/responses", "application/json", strings.NewReader(`{"background":true,"store":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || strings.Count(string(got), "sequence_number") != events || astray.Load() != 0 {
		t.Errorf("%v, %d continuations went astray, %q", err, astray.Load(), got)
	}
}

// TestOneEndpointHasNoLayer: without endpoints nothing of this is there.
func TestOneEndpointHasNoLayer(t *testing.T) {
	a := newServer(t, "a")
	r := start(t, a.Listener.Addr().String(), "")
	r.call("/up/x")
	if st := r.get("/v1/status"); strings.Contains(st, `"routing"`) {
		t.Error("the status speaks of routing")
	}
	if page := r.get("/metrics"); strings.Contains(page, "warmwire_endpoint_") {
		t.Error("the metrics have series of endpoints")
	}
}
