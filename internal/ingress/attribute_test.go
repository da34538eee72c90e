// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/internal/dialect"
)

// A scripted way out: it opens a connection, and answers with tokens.
type scripted struct {
	open   [3]time.Duration // dns, connect, tls; zero = the connection is there
	vain   time.Duration    // an attempt before took so long
	head   time.Duration
	fail   error
	tokens []batch
	path   *fakePath
}

// A batch is tokens that come together.
type batch struct {
	after time.Duration
	n     int
	lost  bool // a segment on the way
}

type fakePath struct {
	net.Conn
	lost atomic.Uint64
}

func (p *fakePath) Evidence() (attribution.Evidence, bool) {
	return attribution.Evidence{Disorder: p.lost.Load()}, true
}
func (p *fakePath) ConnectionID() uint64 { return 42 }

func (s *scripted) RoundTrip(req *http.Request) (*http.Response, error) {
	h := httptrace.ContextClientTrace(req.Context())
	h.GetConn("")
	if s.vain > 0 {
		h.GotConn(httptrace.GotConnInfo{})
		pass(s.vain)
		h.GetConn("")
	}
	if s.open[0] > 0 {
		h.DNSStart(httptrace.DNSStartInfo{})
		pass(s.open[0])
		h.DNSDone(httptrace.DNSDoneInfo{})
		h.ConnectStart("", "")
		pass(s.open[1])
		if s.fail != nil {
			return nil, s.fail
		}
		h.ConnectDone("", "", nil)
		h.TLSHandshakeStart()
		pass(s.open[2])
		h.TLSHandshakeDone(tls.ConnectionState{}, nil)
	}
	h.GotConn(httptrace.GotConnInfo{Conn: s.path})
	pass(time.Millisecond)
	h.WroteRequest(httptrace.WroteRequestInfo{})
	pass(s.head)
	h.GotFirstResponseByte()
	r, w := io.Pipe()
	go func() {
		for _, b := range s.tokens {
			pass(b.after)
			if b.lost {
				s.path.lost.Add(1)
			}
			if _, err := io.WriteString(w, strings.Repeat(token, b.n)); err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
		_ = w.Close()
	}()
	return &http.Response{StatusCode: 200, Proto: "HTTP/2.0", ProtoMajor: 2, ContentLength: -1, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: r}, nil
}

const token = `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"

// A slowWriter is an app that takes each write so late.
type slowWriter struct {
	*httptest.ResponseRecorder
	late time.Duration
}

func (w *slowWriter) Write(p []byte) (int, error) {
	pass(w.late)
	return w.ResponseRecorder.Write(p)
}

// served runs one request in a bubble.
func served(t *testing.T, way *scripted, late time.Duration) *Record {
	t.Helper()
	var rec *Record
	u := &Upstream{Name: "up", URL: &url.URL{Scheme: "http", Host: "up.test"}, Dialect: dialect.OpenAI, Transport: way}
	s, err := New(&Table{Upstreams: []*Upstream{u}, Token: "t"}, Config{Hooks: Hooks{RequestDone: func(r *Record) { rec = r }},
		Admit: func(context.Context, *Upstream, bool) (func(), error) {
			pass(3 * time.Millisecond)
			return func() {}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/up/v1/chat/completions", nil)
	r.Host = "127.0.0.1"
	r.Header.Set(tokenHeader, "t")
	start := time.Now()
	s.ServeHTTP(&slowWriter{httptest.NewRecorder(), late}, r)
	if rec == nil || rec.Outcome == OutcomeRefused {
		t.Fatalf("no record, or %+v", rec)
	}
	if rec.Duration != time.Since(start) {
		t.Errorf("duration %v, it took %v", rec.Duration, time.Since(start))
	}
	return rec
}

func batches(n int, b batch) []batch {
	out := make([]batch, n)
	for i := range out {
		out[i] = b
	}
	return out
}

// TestTheTimeOfARequest plants faults, one at a time: each is named, and the stages sum
// to the duration to the nanosecond.
func TestTheTimeOfARequest(t *testing.T) {
	const ms = time.Millisecond
	steady := batches(20, batch{after: 50 * ms, n: 1})
	base := Phases{Queue: 3 * ms, Send: ms, Wait: 100 * ms, FirstToken: 50 * ms}
	opened, retried := base, base
	opened.DNS, opened.Connect, opened.TLS = 10*ms, 20*ms, 30*ms
	retried.Retry = 700 * ms
	tests := []struct {
		name   string
		way    scripted
		late   time.Duration
		phases Phases
		parts  attribution.Parts
		fault  attribution.Fault
	}{
		{"healthy", scripted{tokens: steady}, 0, base, attribution.Parts{Provider: 950 * ms}, ""},
		{"a new connection", scripted{open: [3]time.Duration{10 * ms, 20 * ms, 30 * ms}, tokens: steady}, 0, opened, attribution.Parts{Provider: 950 * ms}, ""},
		{"a second attempt", scripted{vain: 700 * ms, tokens: steady}, 0, retried, attribution.Parts{Provider: 950 * ms}, ""},
		{"slow provider", scripted{tokens: append(steady[:20:20], batch{after: 3 * time.Second, n: 1})}, 0, base,
			attribution.Parts{Provider: 3950 * ms}, attribution.FaultProvider},
		{"slow reader", scripted{tokens: steady}, 300 * ms, base, attribution.Parts{App: 21 * 300 * ms}, attribution.FaultApp},
		{"lossy network", scripted{tokens: append(steady[:20:20], batches(4, batch{after: 300 * ms, n: 6, lost: true})...)}, 0, base,
			attribution.Parts{Provider: 950*ms + 4*50*ms, Network: 4 * 250 * ms}, attribution.FaultNetwork},
		{"buffering hop", scripted{tokens: append([]batch{{after: 50 * ms, n: 10}}, batches(4, batch{after: 500 * ms, n: 10})...)}, 0, base,
			attribution.Parts{Provider: 4 * 50 * ms, Held: 4 * 450 * ms}, attribution.FaultBuffering},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				way := tt.way
				way.head, way.path = 100*ms, new(fakePath)
				r := served(t, &way, tt.late)
				if r.Phases != tt.phases || r.Fault != tt.fault || r.Conn != 42 {
					t.Errorf("%+v, fault %q on %d, want %+v and %q", r.Phases, r.Fault, r.Conn, tt.phases, tt.fault)
				}
				if tt.late == 0 && r.Parts != tt.parts || r.Parts.App != tt.parts.App {
					t.Errorf("%+v, want %+v", r.Parts, tt.parts)
				}
				if sum := r.Phases.head() + r.Phases.FirstToken + r.Parts.Total(); sum != r.Duration {
					t.Errorf("the stages sum to %v of %v: %+v %+v", sum, r.Duration, r.Phases, r.Parts)
				}
			})
		})
	}
}

// A request that fails says in which stage it was.
func TestTheTimeOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := served(t, &scripted{path: new(fakePath), open: [3]time.Duration{10 * time.Millisecond, 4 * time.Second}, fail: errors.New("no")}, 2*time.Millisecond)
		want := Phases{Queue: 3 * time.Millisecond, DNS: 10 * time.Millisecond, Connect: 4 * time.Second}
		if r.Phases != want || r.Parts != (attribution.Parts{App: 2 * time.Millisecond}) || r.Fault != attribution.FaultNetwork {
			t.Errorf("%+v %+v %q, want %+v", r.Phases, r.Parts, r.Fault, want)
		}
	})
}

// Stages of a connection that was opened for somebody else too do not count twice.
func TestPhasesNeverExceedTheirTime(t *testing.T) {
	p := Phases{Queue: 5, DNS: 10, Connect: 10, TLS: 10, Send: 1, Wait: 7}
	p.settle(20)
	if p.head() != 20 || p.Wait != 7 || min(p.Queue, p.DNS, p.Connect, p.TLS, p.Send) < 0 {
		t.Errorf("%+v", p)
	}
}

// pass lets the bubble's clock pass.
func pass(d time.Duration) {
	if d > 0 {
		<-time.NewTimer(d).C
	}
}
