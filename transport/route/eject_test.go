// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/route"
)

// three is a site of three endpoints that are taken in turn.
func three(t *testing.T, cfg route.Config) *site {
	cfg.Algorithm = route.RoundRobin
	return newSite(t, cfg, endpoints(1, 1, 1))
}

func TestFailuresInARowLeaveAnEndpointOut(t *testing.T) {
	for _, tt := range []struct {
		name string
		does func(*http.Request) (*http.Response, error)
		want string
	}{
		{"connect", fails(errRefused), "b connect false"},
		{"certificate", fails(&fault{phase: "tls", code: "upstream_tls_untrusted"}), "b connect false"},
		{"name", fails(&fault{phase: "dns", code: "upstream_dns_not_found"}), "b connect false"},
		{"reset", fails(errCut), "b error false"},
		{"no head in time", fails(errLate), "b stall false"},
		{"500", says(500), "b error false"}, {"502", says(502), "b error false"}, {"503", says(503), "b error false"}, {"529", says(529), "b error false"},
		{"429", says(429), ""}, {"400", says(400), ""}, {"501", says(501), ""},
		{"a full queue of ours", fails(&fault{phase: "queue", code: "queue_full"}), ""},
		{"cut within", func(*http.Request) (*http.Response, error) {
			return answer(200, io.MultiReader(strings.NewReader("x"), broken{errCut}), "text/event-stream"), nil
		}, "b error false"},
		{"stall within", func(*http.Request) (*http.Response, error) {
			return answer(200, io.MultiReader(strings.NewReader("x"), broken{errLate}), "text/event-stream"), nil
		}, "b stall false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := three(t, route.Config{})
				s.set("b", tt.does)
				for range 14 { // the fifth of b is the 14th
					if s.events() != "" {
						t.Fatal("too early")
					}
					s.call()
				}
				if got := s.events(); got != tt.want {
					t.Fatalf("ejections %q, want %q", got, tt.want)
				}
				if st := s.state("b"); tt.want != "" && st.Out != 10*time.Second {
					t.Errorf("b is out for %v, want exactly 10s", st.Out)
				}
			})
		})
	}
}

// broken is a reader that fails.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestASuccessBetweenCountsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := three(t, route.Config{})
		for i := range 20 {
			s.set("b", fails(errRefused))
			if i%4 == 3 {
				s.set("b", nil)
			}
			s.call()
			s.call()
			s.call()
		}
		if got := s.events(); got != "" {
			t.Errorf("ejections %q, want none", got)
		}
	})
}

func TestEjectionsGrowAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := three(t, route.Config{Eject: route.Ejection{After: 2, MaxTime: time.Minute}})
		s.set("b", fails(errRefused))
		for _, want := range []time.Duration{10, 20, 40, 60, 60} {
			for s.state("b").Out == 0 {
				s.call()
			}
			if out := s.state("b").Out; out != want*time.Second {
				t.Fatalf("out for %v, want exactly %vs", out, int(want))
			}
			was := s.got["b"]
			time.Sleep(s.state("b").Out - 1)
			for range 9 {
				s.call()
			}
			if s.got["b"] != was {
				t.Fatal("it got a request while it was out")
			}
			time.Sleep(time.Nanosecond)
			for s.got["b"] == was {
				s.call()
			}
			if s.state("b").Out == 0 { // on probation one failure is enough
				t.Fatal("back in service it failed, and was not left out again")
			}
		}
	})
}

func TestNotTooManyAreOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.RoundRobin, Eject: route.Ejection{After: 1}}, endpoints(1, 1, 1, 1))
		for _, e := range []string{"a", "b", "c", "d"} {
			s.set(e, fails(errRefused))
		}
		for range 4 {
			s.call()
		}
		if got, want := s.events(), "a connect false, b connect false, c connect true, d connect true"; got != want {
			t.Errorf("ejections %q, want %q: half of four", got, want)
		}
		for range 10 {
			if got := s.call(); got != "c" && got != "d" {
				t.Errorf("went to %s, which is out", got)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Eject: route.Ejection{After: 1, Share: 1}}, endpoints(1))
		s.set("a", fails(errRefused))
		s.call()
		if got := s.events(); got != "a connect true" {
			t.Errorf("ejections %q: the only endpoint must stay", got)
		}
	})
	synctest.Test(t, func(t *testing.T) { // all may be out: then they are used nevertheless
		s := newSite(t, route.Config{Algorithm: route.RoundRobin, Eject: route.Ejection{After: 1, Share: 1}}, endpoints(1, 1))
		s.set("a", fails(errRefused))
		s.set("b", fails(errRefused))
		for range 6 {
			s.call()
		}
		if s.got["a"] != 3 || s.got["b"] != 3 {
			t.Errorf("a %d, b %d of 6, want half each", s.got["a"], s.got["b"])
		}
	})
}

func TestLateFirstBytesLeaveAnEndpointOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := three(t, route.Config{Eject: route.Ejection{After: 3, Slow: 4}})
		s.delay("a", 100*time.Millisecond)
		s.delay("b", 399*time.Millisecond)
		s.delay("c", 100*time.Millisecond)
		for range 30 {
			s.call()
		}
		if got := s.events(); got != "" {
			t.Fatalf("ejections %q at less than 4 times the median", got)
		}
		s.delay("b", 400*time.Millisecond)
		for s.events() == "" && len(s.order) < 60 {
			s.call()
		}
		if got := s.events(); got != "b slow false" || s.got["b"] != 13 {
			t.Errorf("ejections %q after %d requests at b, want b slow after 3 late ones", got, s.got["b"]-10)
		}
	})
}

func TestWhoLeavesSaysNothingOfTheEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Eject: route.Ejection{After: 1}}, endpoints(1, 1))
		for _, e := range []string{"a", "b"} {
			s.set(e, func(req *http.Request) (*http.Response, error) {
				<-req.Context().Done()
				return nil, context.Cause(req.Context())
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := s.way.RoundTrip(request(ctx)); err == nil {
			t.Fatal("no error")
		}
		ctx, late := context.WithTimeout(t.Context(), time.Second)
		defer late()
		if _, err := s.way.RoundTrip(request(ctx)); err == nil {
			t.Fatal("no error")
		}
		if got := s.events(); got != "" {
			t.Errorf("ejections %q", got)
		}
		// A limit of ours that passed is the endpoint's.
		cause, give := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { give(errLate) })
		if _, err := s.way.RoundTrip(request(cause)); err == nil {
			t.Fatal("no error")
		}
		if got := s.events(); !strings.Contains(got, "stall false") {
			t.Errorf("ejections %q, want one for a stall", got)
		}
	})
}

func TestAnAttemptAfterAnotherGoesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.RoundRobin, Eject: route.Ejection{After: -1}}, endpoints(10, 1, 1))
		for _, e := range []string{"a", "b", "c"} {
			s.set(e, fails(errRefused))
		}
		var elsewhere []bool
		again := route.Calls(again(func(req *http.Request) (*http.Response, error) {
			for range 4 {
				_, err := s.way.RoundTrip(req)
				var e interface{ Elsewhere() bool }
				elsewhere = append(elsewhere, errors.As(err, &e) && e.Elsewhere())
				if !errors.Is(err, errRefused) {
					t.Errorf("the error %v does not hold what came", err)
				}
			}
			return nil, errRefused
		}))
		_, _ = again.RoundTrip(request(t.Context()))
		if got := strings.Join(s.order[:3], ""); got != "abc" && got != "acb" {
			t.Errorf("attempts at %s, want each endpoint once", got)
		}
		if !elsewhere[0] || !elsewhere[1] || elsewhere[2] || elsewhere[3] {
			t.Errorf("elsewhere %v, want true while one is untried", elsewhere)
		}
		// Of what was sent it does not say so: only who makes attempts decides on that.
		s.set("a", fails(errCut))
		_, err := s.way.RoundTrip(request(t.Context()))
		var e interface{ Elsewhere() bool }
		if errors.As(err, &e) {
			t.Error("it says of a request that was sent that another endpoint may take it")
		}
	})
}

// again is a layer that makes attempts.
type again func(*http.Request) (*http.Response, error)

func (a again) RoundTrip(req *http.Request) (*http.Response, error) { return a(req) }

func TestWhatContinuesAnAnswerGoesToItsEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.RoundRobin}, endpoints(1, 1, 1))
		resumes := route.Calls(again(func(req *http.Request) (*http.Response, error) {
			lost, err := s.way.RoundTrip(req) // a hedge that lost: nothing of it is read
			if err != nil {
				t.Fatal(err)
			}
			_ = lost.Body.Close()
			resp, err := s.way.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = resp.Body.Read(make([]byte, 1))
			_ = resp.Body.Close()
			for range 2 {
				if resp, err = s.way.RoundTrip(req); err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			}
			return resp, nil
		}))
		if _, err := resumes.RoundTrip(request(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.order, ""); got != "abbb" {
			t.Errorf("attempts at %s, want abbb", got)
		}
	})
}

func TestDrainedEndpointsFinishWhatTheyHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.RoundRobin, Affinity: "X-Session"}, endpoints(1, 1))
		s.delay("a", time.Minute)
		name, body := s.open()
		if name != "a" {
			t.Fatalf("went to %s", name)
		}
		list := endpoints(1, 1)
		list[0].Drain = true
		if err := s.way.Update(list, s.cfg); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if got := s.call("X-Session", string(rune('A'+i))); got != "b" {
				t.Fatalf("went to %s, which is drained", got)
			}
		}
		if st := s.state("a"); st.InFlight != 1 || !st.Drain {
			t.Errorf("a: %+v, want one in flight", st)
		}
		if b, err := io.ReadAll(body); err != nil || string(b) != "x" {
			t.Errorf("the stream at a gave %q, %v", b, err)
		}
		_ = body.Close()
		if st := s.state("a"); st.InFlight != 0 {
			t.Errorf("a: %+v, want none in flight", st)
		}
		list[1].Drain = true
		if err := s.way.Update(list, s.cfg); err == nil {
			t.Error("all endpoints may be drained")
		}
	})
}

func TestUpdateKeepsWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := three(t, route.Config{Eject: route.Ejection{After: 1}})
		s.delay("a", 70*time.Millisecond)
		s.set("b", fails(errRefused))
		s.call()
		s.call()
		list := endpoints(5, 1)
		list[0].Name = "first"
		if err := s.way.Update(list, s.cfg); err != nil {
			t.Fatal(err)
		}
		if st := s.state("first"); st.Latency != 70*time.Millisecond || st.Weight != 5 {
			t.Errorf("a under another name: %+v", st)
		}
		if st := s.state("b"); st.Out != 10*time.Second {
			t.Errorf("b is out for %v, want still 10s", st.Out)
		}
		s.cfg.Eject.After = -1
		if err := s.way.Update(list, s.cfg); err != nil {
			t.Fatal(err)
		}
		if st := s.state("b"); st.Out != 0 {
			t.Errorf("b is out for %v though nothing may be", st.Out)
		}
	})
}

func TestSettingsThatCannotWork(t *testing.T) {
	good := endpoints(1, 1)
	twice := endpoints(1, 1)
	twice[1].URL = twice[0].URL
	for name, tt := range map[string]struct {
		list []route.Endpoint
		cfg  route.Config
	}{
		"none":             {nil, route.Config{}},
		"twice":            {twice, route.Config{}},
		"negative weight":  {endpoints(1, -1), route.Config{}},
		"too many":         {endpoints(make([]float64, 257)...), route.Config{}},
		"algorithm":        {good, route.Config{Algorithm: "best"}},
		"bound":            {good, route.Config{Bound: 0.9}},
		"share":            {good, route.Config{Eject: route.Ejection{Share: 1.1}}},
		"slow":             {good, route.Config{Eject: route.Ejection{Slow: 1}}},
		"longest ejection": {good, route.Config{Eject: route.Ejection{Time: time.Hour, MaxTime: time.Minute}}},
		"path":             {good, route.Config{LoadPath: "metrics"}},
	} {
		if _, err := route.New(&site{}, tt.list, tt.cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
