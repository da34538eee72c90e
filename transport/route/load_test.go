// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/route"
)

// page is what vLLM shows, as far as it matters.
func page(waiting, cache float64) string {
	return fmt.Sprintf(`# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a } model"} %v
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="x\"}"} %v
vllm:num_requests_waiting_by_reason{engine="0"} 1e6
`, waiting, cache)
}

// shows makes an endpoint answer GET /metrics with what text returns.
func (s *site) shows(name string, text func() string) {
	s.set(name, func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodGet {
			return answer(200, strings.NewReader(text()), "text/plain"), nil
		}
		return answer(200, &slow{wait: time.Millisecond, text: "x"}, "text/event-stream"), nil
	})
}

// runs runs the background of s until the test ends.
func (s *site) runs(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.way.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestReportedLoadIsSmoothedOverFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{LoadPath: "/metrics"}, endpoints(1, 1))
		var empty atomic.Bool
		s.shows("a", func() string {
			if empty.Load() {
				return page(0, 0.5)
			}
			return page(10, 0.5)
		})
		s.set("b", says(404))
		defer s.runs(t)()
		time.Sleep(500 * time.Millisecond)
		if a, b := s.state("a"), s.state("b"); a.Waiting != 10 || a.Cache != 0.5 || b.Waiting != -1 {
			t.Fatalf("a %+v, b %+v: want 10 and 0.5, and nothing", a, b)
		}
		empty.Store(true)
		time.Sleep(5 * time.Second)
		if got, want := s.state("a").Waiting, 10*math.Exp(-1); math.Abs(got-want) > 1e-9 {
			t.Errorf("5 s after the queue was empty: %v, want %v", got, want)
		}
		synctest.Wait()
		s.set("a", says(500)) // and nothing more comes
		time.Sleep(9 * time.Second)
		if s.state("a").Waiting < 0 {
			t.Error("9 s after its last word it counts for nothing")
		}
		time.Sleep(time.Second)
		if got := s.state("a").Waiting; got != -1 {
			t.Errorf("10 s after its last word it still says %v", got)
		}
	})
}

func TestReportedLoadIsJoinedIntoTheChoice(t *testing.T) {
	for _, algorithm := range []route.Algorithm{route.RoundRobin, route.LeastRequest, route.Latency} {
		for name, busy := range map[string]string{"queue": page(9, 0), "cache": page(0, 1)} {
			t.Run(string(algorithm)+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t, route.Config{Algorithm: algorithm, LoadPath: "/metrics"}, endpoints(1, 1))
					s.shows("a", func() string { return busy })
					s.shows("b", func() string { return page(0, 0) })
					stop := s.runs(t)
					time.Sleep(100 * time.Millisecond)
					stop()
					if algorithm == route.LeastRequest { // of none in flight the cache tells nothing
						_, body := s.open()
						_, other := s.open()
						defer body.Close()
						defer other.Close()
					}
					s.mu.Lock()
					s.got = map[string]int{}
					s.mu.Unlock()
					for range 60 {
						s.call()
					}
					if s.got["a"] > 15 {
						t.Errorf("the busy one had %d of 60", s.got["a"])
					}
				})
			})
		}
	}
}

func TestNoRequestWaitsForAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{LoadPath: "/metrics", ProbePath: "/health"}, endpoints(1, 1))
		for _, e := range []string{"a", "b"} {
			s.set(e, func(req *http.Request) (*http.Response, error) {
				if req.Method == http.MethodGet { // a page that never comes
					<-req.Context().Done()
					return nil, context.Cause(req.Context())
				}
				return answer(200, strings.NewReader("x"), "text/event-stream"), nil
			})
		}
		defer s.runs(t)()
		synctest.Wait()
		was := time.Now()
		for range 100 {
			s.call()
		}
		if took := time.Since(was); took != 0 {
			t.Errorf("100 requests took %v, want nothing", took)
		}
	})
}

func TestPagesAreBounded(t *testing.T) {
	var endless endlessReader
	if _, err := route.ReadLoad(io.LimitReader(&endless, 1<<20)); !errors.Is(err, route.ErrNoLoad) {
		t.Errorf("a page of one endless line: %v", err)
	}
	long := "# " + strings.Repeat("x", 200<<10) + "\n" + strings.Repeat("y", 200<<10) + " 3\n" + page(3, 0.25)
	if l, err := route.ReadLoad(strings.NewReader(long)); err != nil || l != (route.Load{Waiting: 3, Cache: 0.25}) {
		t.Errorf("behind long lines: %+v, %v", l, err)
	}
	if _, err := route.ReadLoad(io.MultiReader(strings.NewReader(page(1, 1)), broken{errCut})); !errors.Is(err, errCut) {
		t.Errorf("a page that breaks off: %v", err)
	}
}

type endlessReader struct{}

func (*endlessReader) Read(p []byte) (int, error) {
	return copy(p, bytes.Repeat([]byte("x"), len(p))), nil
}

func TestReadLoad(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       route.Load
		bad        bool
	}{
		{"two engines", "vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} 4.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n", route.Load{Waiting: 7, Cache: 0.75}, false},
		{"old name", "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.125\nvllm:num_requests_waiting 2", route.Load{Waiting: 2, Cache: 0.125}, false},
		{"OpenMetrics with a time and an end", "vllm:num_requests_waiting{} 5 1234.5\r\n# EOF\n", route.Load{Waiting: 5}, false},
		{"more than full, less than none", "vllm:num_requests_waiting -2\nvllm:kv_cache_usage_perc 7\n", route.Load{Cache: 1}, false},
		{"not a number", "vllm:num_requests_waiting NaN\n", route.Load{}, true},
		{"infinite", "vllm:num_requests_waiting +Inf\n", route.Load{}, true},
		{"another server", "go_goroutines 3\n", route.Load{}, true},
		{"open labels", "vllm:num_requests_waiting{a=\"} 3\n", route.Load{}, true},
		{"no value", "vllm:num_requests_waiting{a=\"b\"}\n", route.Load{}, true},
		{"empty", "", route.Load{}, true},
	} {
		l, err := route.ReadLoad(strings.NewReader(tt.text))
		if l != tt.want || (err != nil) != tt.bad {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, l, err, tt.want)
		}
	}
}

func FuzzReadLoad(f *testing.F) {
	f.Add([]byte(page(3, 0.5)))
	f.Add([]byte("vllm:num_requests_waiting{a=\"\\"))
	f.Add([]byte("vllm:gpu_cache_usage_perc 0x1p-2 7\n{} 3\n\t\n# EOF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := route.ReadLoad(bytes.NewReader(data))
		if err != nil && l != (route.Load{}) {
			t.Errorf("%+v with %v", l, err)
		}
		if !(l.Waiting >= 0) || math.IsInf(l.Waiting, 0) || !(l.Cache >= 0 && l.Cache <= 1) {
			t.Errorf("%+v is no load", l)
		}
	})
}

func TestProbesLeaveOutAndBringBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.RoundRobin, ProbePath: "/health", ProbeEvery: 5 * time.Second}, endpoints(1, 1))
		s.set("b", says(503))
		defer s.runs(t)()
		time.Sleep(4 * time.Second)
		if got := s.events(); got != "" {
			t.Fatalf("one failed probe: ejections %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.events(); got != "b probe false" {
			t.Fatalf("ejections %q after two failed probes, 5 s in", got)
		}
		time.Sleep(time.Minute) // far longer than the first ejection
		if s.state("b").Out == 0 {
			t.Error("it is back though its probes fail")
		}
		s.set("b", nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if st := s.state("b"); st.Out != 0 {
			t.Errorf("it is still out for %v though its probe was answered", st.Out)
		}
	})
}

func TestRunFollowsUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{}, endpoints(1, 1))
		s.shows("a", func() string { return page(4, 0) })
		defer s.runs(t)()
		time.Sleep(time.Minute)
		if n := s.got["a"] + s.got["b"]; n != 0 {
			t.Fatalf("%d requests of its own without a reason", n)
		}
		s.cfg.LoadPath = "/metrics"
		if err := s.way.Update(endpoints(1, 1), s.cfg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := s.state("a").Waiting; got != 4 {
			t.Errorf("waiting %v, want 4 at once", got)
		}
	})
}

// TestASocketStaysOne: what the way in needs of a WebSocket's body is there.
func TestASocketStaysOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{}, endpoints(1, 1))
		for _, e := range []string{"a", "b"} {
			s.set(e, func(*http.Request) (*http.Response, error) {
				resp := answer(101, http.NoBody, "")
				resp.Body = &fakeSocket{}
				return resp, nil
			})
		}
		_, body := s.open()
		sock, ok := body.(interface {
			io.ReadWriteCloser
			CloseWrite() error
			Watch() net.Conn
			Endpoint() string
		})
		if !ok {
			t.Fatalf("the body of a 101 is a %T", body)
		}
		if got := sock.Endpoint(); got != "https://"+s.last()+".test" {
			t.Errorf("it is open to %s", got)
		}
		time.Sleep(time.Hour)
		if st := s.state(s.last()); st.InFlight != 1 || st.Latency != 0 {
			t.Errorf("%+v: want one in flight, and no latency of tokens", st)
		}
		_ = sock.Close()
		if st := s.state(s.last()); st.InFlight != 0 || st.Done[route.OK] != 1 {
			t.Errorf("%+v after it was closed", st)
		}
	})
}

type fakeSocket struct{ io.ReadWriter }

func (*fakeSocket) Close() error      { return nil }
func (*fakeSocket) CloseWrite() error { return nil }
func (*fakeSocket) Watch() net.Conn   { return nil }

// TestWriterTo: the first byte and the end are seen there too, and who takes nothing
// is not the endpoint's fault.
func TestWriterTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Eject: route.Ejection{After: 1}}, endpoints(1, 1))
		for _, e := range []string{"a", "b"} {
			s.set(e, func(*http.Request) (*http.Response, error) {
				return answer(200, &giver{}, "text/event-stream"), nil
			})
		}
		name, body := s.open()
		var got bytes.Buffer
		if _, err := body.(io.WriterTo).WriteTo(&got); err != nil || got.String() != "hello" {
			t.Errorf("got %q, %v", got.String(), err)
		}
		if st := s.state(name); st.Latency != time.Second || st.Done[route.OK] != 1 {
			t.Errorf("%+v: want 1s, one well done", st)
		}
		name, body = s.open()
		if _, err := body.(io.WriterTo).WriteTo(taker{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("err %v", err)
		}
		_ = body.Close()
		if st := s.state(name); st.Done[route.Left] != 1 || s.events() != "" {
			t.Errorf("%+v, ejections %q", st, s.events())
		}
	})
}

type giver struct{}

func (giver) Read([]byte) (int, error) { return 0, io.EOF }
func (giver) Close() error             { return nil }
func (giver) WriteTo(w io.Writer) (int64, error) {
	<-time.NewTimer(time.Second).C
	n, err := w.Write([]byte("hello"))
	return int64(n), err
}

type taker struct{}

func (taker) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
