// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/route"
)

// nginx's own example: 5, 1, 1 gives a, a, b, a, c, a, a.
func TestRoundRobinIsSmoothAndWeighted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.RoundRobin}, endpoints(5, 1, 1))
		for range 14 {
			s.call()
		}
		if got, want := strings.Join(s.order, ""), "aabacaaaabacaa"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
	})
}

func TestLeastRequestTakesTheLessLoadedOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// 0 draws the first that is left, 0.99 the last: always a and c.
		s := newSite(t, route.Config{Algorithm: route.LeastRequest, Rand: numbers(0, 0.99)}, endpoints(1, 1, 2))
		var open []io.Closer
		for range 6 {
			_, body := s.open()
			open = append(open, body)
		}
		// a is drawn first and wins when even: c has 2 requests for each of a's.
		if got, want := strings.Join(s.order, ""), "accacc"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		for _, c := range open {
			_ = c.Close()
		}
		for _, st := range s.way.States() {
			if st.InFlight != 0 {
				t.Errorf("%s has %d in flight after all were closed", st.Name, st.InFlight)
			}
		}
	})
}

func TestAnIdleUpstreamIsUsedByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.LeastRequest, Rand: rand.New(rand.NewPCG(1, 2)).Float64}, endpoints(1, 3))
		for range 4000 {
			s.call()
		}
		if share := float64(s.got["b"]) / 4000; math.Abs(share-0.75) > 0.02 {
			t.Errorf("b had %v of the requests, want 3/4", share)
		}
	})
}

func TestLatencyLearnsTheTimeToTheFirstByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Rand: numbers(0, 0.99)}, endpoints(1, 1))
		s.delay("a", 100*time.Millisecond)
		s.delay("b", 30*time.Millisecond)
		for range 5 {
			s.call()
		}
		// One request each finds out, then it is b's.
		if got, want := strings.Join(s.order, ""), "abbbb"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		if a, b := s.state("a").Latency, s.state("b").Latency; a != 100*time.Millisecond || b != 30*time.Millisecond {
			t.Errorf("learned %v and %v, want exactly 100ms and 30ms", a, b)
		}
		// b slows down: it is believed at once (the peak), and a has its turn.
		s.delay("b", 150*time.Millisecond)
		if got := s.call() + s.call(); got != "ba" {
			t.Errorf("after b slowed down: %s, want ba", got)
		}
		if b := s.state("b").Latency; b != 150*time.Millisecond {
			t.Errorf("learned %v, want exactly 150ms", b)
		}
		// What is learned fades: 10 s later a new value has 1-1/e of the weight.
		s.set("a", fails(errRefused))
		time.Sleep(10*time.Second - 100*time.Millisecond) // a's call took these
		s.delay("b", 50*time.Millisecond)
		was := time.Now()
		for s.call() != "b" {
		}
		keep := math.Exp(-float64(was.Add(50*time.Millisecond).Sub(was.Add(-10*time.Second))) / float64(10*time.Second))
		want := time.Duration(float64(150*time.Millisecond)*keep + float64(50*time.Millisecond)*(1-keep))
		if got := s.state("b").Latency; (got - want).Abs() > time.Microsecond {
			t.Errorf("learned %v, want %v", got, want)
		}
	})
}

func TestARequestThatWaitsTooLongIsNewsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Rand: numbers(0, 0.99)}, endpoints(1, 1))
		s.delay("a", 100*time.Millisecond)
		s.delay("b", 300*time.Millisecond)
		s.call()
		s.call()
		s.delay("a", time.Hour)
		ctx := t.Context()
		resp, err := s.way.RoundTrip(request(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.last(); got != "a" {
			t.Fatalf("went to %s, want a", got)
		}
		// One request waits at a: 2 × 100 ms are less than 300 ms.
		if got := s.next(); got != "a" {
			t.Errorf("at once: %s, want a", got)
		}
		time.Sleep(160 * time.Millisecond) // now 160 ms × 2 are more
		if got := s.state("a").Latency; got != 160*time.Millisecond {
			t.Errorf("expected at a %v, want the age of what waits, 160ms", got)
		}
		if got := s.next(); got != "b" {
			t.Errorf("after 160 ms: %s, want b", got)
		}
		_ = resp.Body.Close()
	})
}

// next says where a request would go, and takes it back.
func (s *site) next() string {
	name, body := s.open()
	_ = body.Close()
	return name
}

func TestASlowEndpointIsLookedAtNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Rand: rand.New(rand.NewPCG(3, 4)).Float64}, endpoints(1, 1))
		s.delay("a", 10*time.Millisecond)
		s.delay("b", time.Second)
		for range 2000 { // 20 s
			s.call()
		}
		if n := s.got["b"]; n < 2 || n > 7 {
			t.Errorf("%d of 2000 went to the slow one, want a few, at most a quarter of a percent and two", n)
		}
		s.delay("b", time.Millisecond)
		was := s.got["b"]
		for range 6000 {
			s.call()
		}
		if n := s.got["b"] - was; n < 2000 {
			t.Errorf("%d of 6000 went to it after it had become better, want most", n)
		}
	})
}

func TestProtocolsAndKindsAreLearnedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Rand: numbers(0, 0.99)}, endpoints(1, 1))
		s.delay("a", 100*time.Millisecond)
		s.call()
		if got := s.state("a").Latency; got != 100*time.Millisecond {
			t.Fatalf("learned %v", got)
		}
		s.set("b", fails(errRefused))
		s.set("a", func(*http.Request) (*http.Response, error) {
			return answer(200, &slow{wait: 9 * time.Second, text: "{}"}, "application/json"), nil
		})
		s.call() // b, which is not known
		s.call()
		if got := s.state("a").Latency; got != 100*time.Millisecond {
			t.Errorf("an answer that is no stream changed what is known of streams: %v", got)
		}
		s.set("a", func(*http.Request) (*http.Response, error) {
			resp := answer(200, &slow{wait: 20 * time.Millisecond, text: "x"}, "text/event-stream")
			resp.ProtoMajor = 3
			return resp, nil
		})
		for range 4 {
			s.call()
		}
		if got := s.state("a").Latency; got != 20*time.Millisecond {
			t.Errorf("over HTTP/3 expected %v, want exactly 20ms: its own", got)
		}
	})
}

func TestAffinityBindsAValueToAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Affinity: "X-Session", Bound: 100}, endpoints(1, 1, 1, 1))
		home := map[string]string{}
		for i := range 1000 {
			key := fmt.Sprint("user-", i)
			home[key] = s.call("X-Session", key)
			if again := s.call("X-Session", key); again != home[key] {
				t.Fatalf("%s went to %s, then to %s", key, home[key], again)
			}
		}
		for _, e := range []string{"a", "b", "c", "d"} {
			if n := s.got[e] / 2; n < 200 || n > 300 {
				t.Errorf("%s has %d of 1000 values, want a quarter", e, n)
			}
		}
		if err := s.way.Update(endpoints(1, 1, 1), s.cfg); err != nil { // d goes
			t.Fatal(err)
		}
		for key, was := range home {
			if now := s.call("X-Session", key); was != "d" && now != was {
				t.Fatalf("%s moved from %s to %s though only d went", key, was, now)
			}
		}
	})
}

func TestAffinityKeepsAWeightedShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Affinity: "x-session", Bound: 100}, endpoints(1, 3))
		for i := range 4000 {
			s.call("X-Session", fmt.Sprint(i))
		}
		if share := float64(s.got["b"]) / 4000; math.Abs(share-0.75) > 0.03 {
			t.Errorf("b has %v of the values, want 3/4", share)
		}
	})
}

func TestAffinityIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Affinity: "X-Session"}, endpoints(1, 1, 1, 1))
		var open []io.Closer
		for range 40 { // all of one value
			_, body := s.open("X-Session", "hot")
			open = append(open, body)
		}
		most := 0
		for _, n := range s.got {
			most = max(most, n)
		}
		if most != 13 { // ceil(1.25 × 40 / 4)
			t.Errorf("the most loaded endpoint has %d of 40, want exactly 13", most)
		}
		for _, c := range open {
			_ = c.Close()
		}
	})
}

func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, route.Config{Algorithm: route.RoundRobin, SlowStart: 100 * time.Second}, endpoints(1))
		if got := s.state("a").Share; got != 1 {
			t.Errorf("at the process's start a has %v of its weight, want all", got)
		}
		time.Sleep(time.Second)
		if err := s.way.Update(endpoints(1, 1), s.cfg); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			at   time.Duration
			want float64
		}{{0, 0.1}, {10 * time.Second, 0.1}, {25 * time.Second, 0.25}, {50 * time.Second, 0.5}, {100 * time.Second, 1}} {
			time.Sleep(step.at - time.Since(epoch.Add(time.Second)))
			if a, b := s.state("a").Share, s.state("b").Share; a != 1 || b != step.want {
				t.Errorf("after %v: a %v, b %v of their weights, want 1 and %v", step.at, a, b, step.want)
			}
		}
		// At a quarter of its weight it gets a fifth: 1 to 4.
		if err := s.way.Update(endpoints(1, 1, 1), s.cfg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		s.got = map[string]int{}
		for range 100 {
			s.call()
		}
		if got := s.got["c"]; got != 20 {
			t.Errorf("an endpoint with half its weight got %d of 100, want 20", got)
		}
	})
}

// epoch is where a bubble's clock begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func TestManyAtOnce(t *testing.T) {
	for _, algorithm := range []route.Algorithm{route.RoundRobin, route.LeastRequest, route.Latency} {
		t.Run(string(algorithm), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, route.Config{Algorithm: algorithm}, endpoints(1, 2, 3))
				for _, e := range []string{"a", "b", "c"} {
					s.delay(e, 50*time.Millisecond)
				}
				var all sync.WaitGroup
				for i := range 300 {
					all.Go(func() {
						time.Sleep(time.Duration(i%30) * time.Millisecond)
						_, body := s.open()
						_, _ = io.Copy(io.Discard, body)
						_ = body.Close()
					})
				}
				all.Wait()
				synctest.Wait()
				sum := 0
				for _, st := range s.way.States() {
					if st.InFlight != 0 || st.Done[route.OK] == 0 {
						t.Errorf("%s: %d in flight, %d done", st.Name, st.InFlight, st.Done[route.OK])
					}
					sum += int(st.Done[route.OK])
				}
				if sum != 300 {
					t.Errorf("%d done, want 300", sum)
				}
			})
		})
	}
}
