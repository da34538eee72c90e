// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/accesslog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait on the real clock; nothing passes by waiting it out.
const patience = 20 * time.Second

// full is a record with every field set.
var full = accesslog.Record{
	ID: 7, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Duration: 1500 * time.Millisecond,
	Upstream: "openai", Tenant: "team-a", Mode: "base_url", Route: "chat", Method: "POST", ClientProtocol: "HTTP/1.1", UpstreamProtocol: "HTTP/2.0",
	Status: 200, Outcome: "cut_upstream", Cause: "upstream_truncated", Stream: true, BytesIn: 600, BytesOut: 12000,
	Phases: accesslog.Phases{Queue: 1e6, DNS: 2e6, Connect: 3e6, TLS: 4e6, Send: 5e6, Wait: 6500 * time.Microsecond, Retry: 7e6, FirstToken: 8e6}, Reused: true,
	Parts: accesslog.Parts{Provider: 9e6, Held: 10e6, Network: 11e6, App: 12e6}, Fault: "network", Conn: 17,
	TTFT: 250 * time.Millisecond, PerChunk: 20 * time.Millisecond, Chunks: 60, InputTokens: 11, OutputTokens: 61,
	Attempts: 3, Resumes: 1, AppRetries: 2, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
}

// well is a record of a request that went well.
func well(id uint64) accesslog.Record {
	return accesslog.Record{ID: id, Time: full.Time, Upstream: "openai", Method: "GET", Status: 200, Outcome: "ok"}
}

// A sink is an output or the notes, read while it is written.
type sink struct {
	mu  sync.Mutex // guards the fields below
	buf bytes.Buffer
	err error // of the next writes
	fit int   // bytes that are taken before err
	n   int   // writes
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if s.err != nil {
		n := min(s.fit, len(p))
		s.fit -= n
		s.buf.Write(p[:n])
		return n, s.err
	}
	return s.buf.Write(p)
}

func (s *sink) fail(err error, fit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.fit = err, fit
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *sink) writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func (s *sink) count(what string) int { return strings.Count(s.String(), what) }

// A run is a log that runs.
type run struct {
	*accesslog.Log
	t     testing.TB
	out   *sink
	notes *sink
	stop  context.CancelFunc
	ended chan error
}

// start runs a log whose standard output is a sink.
func start(t testing.TB, cfg accesslog.Config) *run {
	t.Helper()
	r := &run{t: t, out: new(sink), notes: new(sink), ended: make(chan error, 1)}
	l, err := accesslog.New(r.out, slog.New(slog.NewTextHandler(r.notes, nil)), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.Log, r.stop = l, cancel
	go func() { r.ended <- l.Run(ctx) }()
	return r
}

// end stops the log, waits for it and returns what it wrote.
func (r *run) end() string {
	r.t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Error(err)
	}
	return r.out.String()
}

// write runs a log for some records and returns what it wrote.
func write(t testing.TB, cfg accesslog.Config, records ...accesslog.Record) string {
	t.Helper()
	r := start(t, cfg)
	for _, rec := range records {
		r.Record(rec)
	}
	return r.end()
}

// until waits on the real clock.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for: %s", what)
		}
	}
}
