// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/mockapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wire is an in-memory listener with its dialler.
type wire struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newWire() *wire { return &wire{conns: make(chan net.Conn), done: make(chan struct{})} }

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.done) })
	return nil
}

func (w *wire) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case w.conns <- buffer(far):
		return buffer(near), nil
	case <-w.done:
		return nil, errors.New("nobody listens")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A buffered connection takes what is written without a reader at the other
// end, as a socket does, and hands it over before it closes.
type buffered struct {
	net.Conn
	mu     sync.Mutex // guards out against being closed while in use
	out    chan []byte
	closed bool
}

func buffer(c net.Conn) *buffered {
	b := &buffered{Conn: c, out: make(chan []byte, 4096)}
	go b.pump()
	return b
}

func (b *buffered) pump() {
	defer b.Conn.Close()
	for p := range b.out {
		if _, err := b.Conn.Write(p); err != nil {
			return
		}
	}
}

func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, net.ErrClosed
	}
	select {
	case b.out <- slices.Clone(p):
		return len(p), nil
	default:
		return 0, errors.New("the buffer of the test is full")
	}
}

func (b *buffered) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	close(b.out)
	// Reads end at once and what still comes in is thrown away, so that the
	// other end cannot block; what was written still goes out.
	if err := errors.Join(b.Conn.SetReadDeadline(time.Unix(1, 0)), b.Conn.SetReadDeadline(time.Time{})); err != nil {
		return nil // closed already
	}
	go func() { _, _ = io.Copy(io.Discard, b.Conn) }() // ends when pump closes it
	return nil
}

func (b *buffered) Read(p []byte) (int, error) {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	return b.Conn.Read(p)
}

// inBubble runs f with a mock API in memory and a clock that is fake.
func inBubble(t *testing.T, f func(t *testing.T, cfg Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		api, err := mockapi.New(mockapi.Config{Listener: w, TLSAddr: "off"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := api.Run(ctx); err != nil {
				t.Errorf("the mock API: %v", err)
			}
		})
		f(t, Config{Dial: w.dial, Timeout: time.Minute, Seed: 1})
		cancel()
		running.Wait()
	})
}

func address(t *testing.T, s string) Target {
	t.Helper()
	u, err := ParseAddress(s)
	if err != nil {
		t.Fatal(err)
	}
	return Target{URL: u}
}

// collect runs cfg and returns the results in the order of their numbers.
func collect(t *testing.T, ctx context.Context, cfg Config) []Result {
	t.Helper()
	var all []Result
	r, err := New(cfg, func(res Result) { all = append(all, res) })
	if err != nil {
		t.Fatal(err)
	}
	r.Run(ctx)
	slices.SortFunc(all, func(a, b Result) int { return a.Number - b.Number })
	return all
}

var paths = map[API]string{
	Chat: "/v1/chat/completions", Responses: "/v1/responses", Anthropic: "/v1/messages",
	Gemini: "/v1beta/models/mock;tokens=5,ttft=200ms,gap=10ms:streamGenerateContent", Realtime: "/v1/realtime",
}

func TestEveryProtocolIsTimedExactly(t *testing.T) {
	for api, path := range paths {
		t.Run(string(api), func(t *testing.T) {
			inBubble(t, func(t *testing.T, cfg Config) {
				cfg.API, cfg.Direct, cfg.Requests = DetectAPI(path), address(t, "http://api.test"+path), 2
				cfg.Model = "mock?tokens=5&ttft=200ms&gap=10ms"
				for i, r := range collect(t, t.Context(), cfg) {
					if r.Outcome != OK || r.First != 200*millisecond || r.Last != 240*millisecond || r.End != 240*millisecond || r.Chunks != 5 {
						t.Errorf("call %d: %+v", i, r)
					}
					if d, ok := r.TPOT(); !ok || d != 10*millisecond {
						t.Errorf("call %d: TPOT %v, %v, of %d tokens", i, d, ok, r.OutputTokens)
					}
					if want := slices.Repeat([]time.Duration{10 * millisecond}, 4); !slices.Equal(r.Gaps, want) {
						t.Errorf("call %d: gaps %v, want %v", i, r.Gaps, want)
					}
					if counted := api == Realtime; r.Counted != counted || r.OutputTokens != 5 { // the mock's realtime has no usage
						t.Errorf("call %d: %d tokens, counted by chunks: %v", i, r.OutputTokens, r.Counted)
					}
					if opened := i == 0 || api == Realtime; r.Opened != opened {
						t.Errorf("call %d: opened a connection: %v, want %v", i, r.Opened, opened)
					}
				}
			})
		})
	}
}

func TestResponsesOverWebSocket(t *testing.T) {
	inBubble(t, func(t *testing.T, cfg Config) {
		cfg.API, cfg.Direct, cfg.Requests = Responses, address(t, "ws://api.test/v1/responses"), 1
		cfg.Model = "mock?tokens=5&ttft=200ms&gap=10ms"
		for _, r := range collect(t, t.Context(), cfg) {
			if r.Outcome != OK || r.First != 200*millisecond || r.Chunks != 5 || r.Counted {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestEveryEndIsAnOutcome(t *testing.T) {
	tests := []struct {
		fault   string
		want    Outcome
		reason  string
		cut     bool
		sockets Outcome // "" if the fault is none of a WebSocket
	}{
		{"status=429", Status, "HTTP 429", false, ""},
		{"error=3", ErrorEvent, "", false, ErrorEvent},
		{"cut=3", MissingEnd, "closed in the stream", true, MissingEnd},
		{"clean=3", MissingEnd, "ended without its last event", true, MissingEnd},
		{"cut=head", Reset, "closed before the answer", false, ""},
		{"stall=3", Timeout, "time-out in the stream", true, Timeout},
		{"hold", Timeout, "time-out before the answer", false, ""},
		{"gzip=force", Malformed, "compressed", false, ""},
		{"nonsense=1", Status, "HTTP 400", false, Status},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			inBubble(t, func(t *testing.T, cfg Config) {
				cfg.API, cfg.Direct, cfg.Requests, cfg.Timeout = Chat, address(t, "http://api.test/v1/chat/completions"), 2, 5*time.Second
				cfg.Model = "mock?tokens=9&ttft=20ms&gap=10ms&" + tt.fault
				for _, r := range collect(t, t.Context(), cfg) {
					if r.Outcome != tt.want || !strings.Contains(r.Reason, tt.reason) || r.Interrupted() != tt.cut {
						t.Errorf("%s: %s (%s), interrupted %v", tt.fault, r.Outcome, r.Reason, r.Interrupted())
					}
					if tt.want == Timeout && r.End != 5*time.Second {
						t.Errorf("%s: ended after %v", tt.fault, r.End)
					}
				}
				if tt.sockets == "" {
					return
				}
				cfg.API, cfg.Direct = Realtime, address(t, "ws://api.test/v1/realtime")
				for _, r := range collect(t, t.Context(), cfg) {
					if r.Outcome != tt.sockets {
						t.Errorf("%s over a WebSocket: %s (%s)", tt.fault, r.Outcome, r.Reason)
					}
				}
			})
		})
	}
}

func TestNobodyListens(t *testing.T) {
	inBubble(t, func(t *testing.T, cfg Config) {
		cfg.API, cfg.Direct, cfg.Requests = Chat, address(t, "http://api.test/v1/chat/completions"), 3
		cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.DNSError{Err: "no such host", Name: "secret.test", IsNotFound: true}
		}
		for _, r := range collect(t, t.Context(), cfg) {
			if r.Outcome != Unreachable || strings.Contains(r.Reason, "secret") || !strings.Contains(r.Reason, "no such host") {
				t.Errorf("%s (%s)", r.Outcome, r.Reason)
			}
		}
	})
}

func TestLegsTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, cfg Config) {
		cfg.API, cfg.Direct, cfg.Requests = Chat, address(t, "http://api.test/v1/chat/completions"), 3
		through := ThroughTarget(cfg.Direct, address(t, "http://near.test").URL)
		cfg.Through = &through
		cfg.Model = "mock?tokens=2&ttft=20ms"
		var order []Leg
		for _, r := range collect(t, t.Context(), cfg) {
			order = append(order, r.Leg)
		}
		if want := []Leg{Direct, Through, Direct, Through, Direct, Through}; !slices.Equal(order, want) {
			t.Errorf("legs %v, want %v", order, want)
		}
	})
}

// Every call takes an hour here, and none is late for it.
func TestSlowServerDoesNotSlowArrivals(t *testing.T) {
	inBubble(t, func(t *testing.T, cfg Config) {
		cfg.API, cfg.Direct, cfg.Requests = Chat, address(t, "http://api.test/v1/chat/completions"), 30
		cfg.Model, cfg.Timeout, cfg.Rate, cfg.MaxInFlight = "mock?hold", time.Hour, 10, 20
		start := time.Now()
		var begun []time.Duration
		inner := cfg.Dial
		var mu sync.Mutex
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			mu.Lock()
			begun = append(begun, time.Since(start))
			mu.Unlock()
			return inner(ctx, network, address)
		}
		var counts = map[Outcome]int{}
		for _, r := range collect(t, t.Context(), cfg) {
			counts[r.Outcome]++
		}
		if want := map[Outcome]int{Timeout: 20, NotSent: 10}; !maps.Equal(counts, want) {
			t.Errorf("outcomes %v, want %v", counts, want)
		}
		var due []time.Duration
		for d := range Poisson(cfg.Rate, cfg.Seed) {
			if due = append(due, d); len(due) == 20 {
				break
			}
		}
		if !slices.Equal(begun, due) {
			t.Errorf("calls began at %v, were due at %v", begun, due)
		}
	})
}

func TestFixedConcurrency(t *testing.T) {
	inBubble(t, func(t *testing.T, cfg Config) {
		cfg.API, cfg.Direct, cfg.Requests = Chat, address(t, "http://api.test/v1/chat/completions"), 12
		cfg.Model, cfg.Concurrency = "mock?tokens=1&ttft=100ms", 4
		r, err := New(cfg, func(Result) {})
		if err != nil {
			t.Fatal(err)
		}
		if took := r.Run(t.Context()); took != 300*millisecond { // twelve calls, four at a time
			t.Errorf("took %v, want 300 ms", took)
		}
	})
}

func TestStopEndsAtOnce(t *testing.T) {
	for name, rate := range map[string]float64{"closed": 0, "open": 100} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, cfg Config) {
				cfg.API, cfg.Direct, cfg.Requests, cfg.Rate = Chat, address(t, "http://api.test/v1/chat/completions"), 1000, rate
				cfg.Model = "mock?hold"
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				start := time.Now()
				all := collect(t, ctx, cfg)
				if took := time.Since(start); took != time.Second {
					t.Errorf("took %v", took)
				}
				if len(all) == 0 || len(all) == 1000 {
					t.Errorf("%d results", len(all))
				}
				for _, r := range all {
					if r.Outcome != Stopped {
						t.Errorf("outcome %s (%s)", r.Outcome, r.Reason)
					}
				}
			})
		})
	}
}

func TestGridIsWalkedInRounds(t *testing.T) {
	cells, err := Grid([]int{1, 2}, []int{3, 4, 5}, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	for round := range slices.Chunk(cells, 6) {
		seen := map[Cell]bool{}
		for _, c := range round {
			seen[c] = true
		}
		if len(seen) != 6 {
			t.Errorf("a round holds %v", round)
		}
	}
	if _, err := Grid([]int{1}, []int{1}, maxCells+1, 1); err == nil {
		t.Error("a grid without bound is taken")
	}
	inBubble(t, func(t *testing.T, cfg Config) {
		cfg.API, cfg.Direct, cfg.Model = Chat, address(t, "http://api.test/v1/chat/completions"), "mock?tokens=3&ttft=5ms&gap=5ms"
		var got []int
		r, err := New(cfg, func(res Result) {
			got = append(got, res.Number)
			if p, ok := PointOf(res, cells[res.Number]); !ok || p.Output != 3 || p.Latency != 15 {
				t.Errorf("point %+v, %v", p, ok)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if took := r.RunGrid(t.Context(), cells); took != 12*15*millisecond || len(got) != 12 {
			t.Errorf("took %v for calls %v", took, got)
		}
	})
}

// loopback starts a mock API with TLS on real sockets.
func loopback(t *testing.T) *mockapi.Server {
	t.Helper()
	api, err := mockapi.New(mockapi.Config{Names: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := api.Run(ctx); err != nil {
			t.Errorf("the mock API: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return api
}

func TestHandshakesAreAsAsked(t *testing.T) {
	api := loopback(t)
	host := strings.Replace(api.TLSURL(), "127.0.0.1", "localhost", 1)
	for _, path := range []string{"/v1/chat/completions", "/v1/realtime"} {
		for _, mode := range []TLSMode{TLSReuse, TLSFull, TLSResumed} {
			cfg := Config{API: DetectAPI(path), Direct: address(t, host+path), TLS: mode, RootCAs: api.CertPool(), Requests: 4, Model: "mock?tokens=2"}
			for i, r := range collect(t, t.Context(), cfg) {
				reused := mode == TLSReuse && i > 0 && cfg.API == Chat
				if r.Outcome != OK || r.Opened == reused || r.Handshake == reused {
					t.Errorf("%s %q call %d: %+v", path, mode, i, r)
				}
				if resumed := mode == TLSResumed || mode == TLSReuse && i > 0 && cfg.API == Realtime; r.Resumed != resumed {
					t.Errorf("%s %q call %d: resumed %v, want %v", path, mode, i, r.Resumed, resumed)
				}
				for _, p := range []Phase{DNS, Connect, TLS} {
					if (r.Phase[p] >= 0) == reused {
						t.Errorf("%s %q call %d: phase %s took %v", path, mode, i, p, r.Phase[p])
					}
				}
				if r.Phase[Request] < 0 || r.Phase[Wait] < 0 {
					t.Errorf("%s %q call %d: phases %v", path, mode, i, r.Phase)
				}
			}
		}
	}
}

func TestRealSocketsFail(t *testing.T) {
	api := loopback(t)
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + refused.Addr().String()
	if err := refused.Close(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, base, path, model string
		want                    Outcome
		reason                  string
	}{
		{"refused", nobody, "/v1/chat/completions", "mock", Unreachable, "connection refused while connecting"},
		{"refused WebSocket", nobody, "/v1/realtime", "mock", Unreachable, "connection refused while connecting"},
		{"untrusted", api.TLSURL(), "/v1/chat/completions", "mock", Unreachable, "unknown authority in the TLS handshake"},
		{"no TLS", strings.Replace(api.URL(), "http:", "https:", 1), "/v1/chat/completions", "mock", Unreachable, "in the TLS handshake"},
		{"reset", api.URL(), "/v1/chat/completions", "mock?tokens=9&reset=3", Reset, "connection reset by peer in the stream"},
		{"reset before the head", api.URL(), "/v1/chat/completions", "mock?reset=head", Reset, ""},
		{"reset WebSocket", api.URL(), "/v1/realtime", "mock?tokens=9&reset=3", Reset, "connection reset by peer in the stream"},
		{"no such path", api.URL(), "/v2/chat/completions", "mock", Status, "HTTP 404"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{API: DetectAPI(tt.path), Direct: address(t, tt.base+tt.path), Requests: 1, Model: tt.model, Timeout: 10 * time.Second}
			for _, r := range collect(t, t.Context(), cfg) {
				if r.Outcome != tt.want || !strings.Contains(r.Reason, tt.reason) || strings.Contains(r.Reason, "127.0.0.1") {
					t.Errorf("%s (%s), want %s (%s)", r.Outcome, r.Reason, tt.want, tt.reason)
				}
			}
		})
	}
}

func TestStreamResetOverHTTP2(t *testing.T) {
	api := loopback(t)
	cfg := Config{API: Chat, Direct: address(t, api.TLSURL()+"/v1/chat/completions"), RootCAs: api.CertPool(), Requests: 3, Model: "mock?tokens=9&reset=3"}
	reasons := map[string]int{}
	for _, r := range collect(t, t.Context(), cfg) {
		if r.Outcome != Reset || !r.Interrupted() {
			t.Errorf("%s (%s)", r.Outcome, r.Reason)
		}
		reasons[r.Reason]++
	}
	if len(reasons) != 1 { // the stream's id is no reason
		t.Errorf("one fault has the reasons %v", reasons)
	}
}

func TestNothingSecretIsShown(t *testing.T) {
	const secret = "sk-planted-secret"
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, r.Header.Get("Authorization"), r.Host, r.URL.RequestURI())
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error":{"code":"` + secret + `1","message":"` + secret + string(body) + `"}}`))
	}))
	defer server.Close()
	target := address(t, server.URL+"/v1/chat/completions?key="+secret)
	target.Header, target.Host = http.Header{"Authorization": {"Bearer " + secret}}, "api.test"
	cfg := Config{API: Chat, Direct: target, Requests: 1, Prompt: secret}
	for _, r := range collect(t, t.Context(), cfg) {
		if r.Outcome != Status || strings.Contains(r.Reason, secret) {
			t.Errorf("%s (%s)", r.Outcome, r.Reason)
		}
	}
	if want := []string{"Bearer " + secret, "api.test", "/v1/chat/completions?key=" + secret}; !slices.Equal(got, want) {
		t.Errorf("the server got %q, want %q", got, want)
	}
	if shown := ShowAddress(target.URL); strings.Contains(shown, secret) {
		t.Errorf("shown as %s", shown)
	}
	_, err := ParseAddress("http://api.test:port/?key=" + secret)
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("ParseAddress = %v", err)
	}
	if _, _, err := ParseHeader("Authorization " + secret); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("ParseHeader = %v", err)
	}
}

func TestAnswersThatAreNoStream(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"choices":[{"message":{"content":"all at once"}}]}`))
	}))
	defer server.Close()
	for _, r := range collect(t, t.Context(), Config{API: Chat, Direct: address(t, server.URL+"/v1/chat/completions"), Requests: 2}) {
		if r.Outcome != Malformed || r.Interrupted() {
			t.Errorf("%s (%s), interrupted %v", r.Outcome, r.Reason, r.Interrupted())
		}
	}
}

func TestWayThrough(t *testing.T) {
	tests := []struct{ direct, via, want, host string }{
		{"https://api.test/v1/chat/completions", "http://127.0.0.1:8484/openai", "http://127.0.0.1:8484/openai/v1/chat/completions", ""},
		{"https://api.test/v1/messages?beta=1", "http://127.0.0.1:8484/anthropic/", "http://127.0.0.1:8484/anthropic/v1/messages?beta=1", ""},
		{"https://api.test/openai/v1/chat/completions", "http://127.0.0.1:8484/groq/v1/chat/completions", "http://127.0.0.1:8484/groq/v1/chat/completions", ""},
		{"https://api.test:444/v1/responses", "http://127.0.0.1:8484", "http://127.0.0.1:8484/v1/responses", "api.test:444"},
		{"https://api.test/v1/models/a%2Fb:streamGenerateContent", "http://127.0.0.1:8484/g", "http://127.0.0.1:8484/g/v1/models/a%2Fb:streamGenerateContent", ""},
	}
	for _, tt := range tests {
		got := ThroughTarget(address(t, tt.direct), address(t, tt.via).URL)
		if got.URL.String() != tt.want || got.Host != tt.host {
			t.Errorf("%s through %s = %s with host %q, want %s with %q", tt.direct, tt.via, got.URL, got.Host, tt.want, tt.host)
		}
	}
}

func TestBadSettingsAreRefused(t *testing.T) {
	good := Config{API: Chat, Direct: address(t, "https://api.test/v1/chat/completions")}
	if err := good.WithDefaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"requests":    func(c *Config) { c.Requests = -1 },
		"concurrency": func(c *Config) { c.Concurrency = 1 << 20 },
		"rate":        func(c *Config) { c.Rate = -1 },
		"API":         func(c *Config) { c.API = "smtp" },
		"scheme":      func(c *Config) { c.Direct = Target{URL: &url.URL{Scheme: "ftp", Host: "a"}} },
		"socket":      func(c *Config) { c.Direct = Target{URL: &url.URL{Scheme: "wss", Host: "a"}} },
		"handshake":   func(c *Config) { c.TLS = "half" },
		"no TLS":      func(c *Config) { c.TLS, c.Direct = TLSFull, Target{URL: &url.URL{Scheme: "http", Host: "a"}} },
		"time-out":    func(c *Config) { c.Timeout = -1 },
		"prompt":      func(c *Config) { c.PromptTokens = -1 },
	} {
		c := good
		spoil(&c)
		if _, err := New(c, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, s := range []string{"", "ttft", "ttft=5", "ttft=-1s", "itl=5ms", "ttft=1s,,"} {
		if l, err := ParseLimits(s); err == nil {
			t.Errorf("limits %q are taken as %+v", s, l)
		}
	}
	if l, err := ParseLimits("ttft=500ms, tpot=50ms,e2el=10s"); err != nil || l != (Limits{500 * millisecond, 50 * millisecond, 10 * time.Second}) {
		t.Errorf("limits %+v, %v", l, err)
	}
	for _, s := range []string{"", "a", ": b", "a b: c", "ä: c", "a: b\r\nc: d"} {
		if name, _, err := ParseHeader(s); err == nil {
			t.Errorf("header %q is taken as %q", s, name)
		}
	}
	for _, s := range []string{"", "0", "a", "1,,2", "5000000"} {
		if n, err := ParseLengths(s); err == nil {
			t.Errorf("lengths %q are taken as %v", s, n)
		}
	}
}
