// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// MaxEndpoints is how many one upstream may have.
const MaxEndpoints = 256

// An Algorithm is how an endpoint is chosen.
type Algorithm string

// The algorithms.
const (
	RoundRobin   Algorithm = "round_robin"   // smooth, weighted
	LeastRequest Algorithm = "least_request" // of two drawn by weight, the one with fewer requests for its weight
	Latency      Algorithm = "latency"       // of two, the one that is expected to answer sooner
)

// An Endpoint is one origin.
type Endpoint struct {
	Name   string   // in states and hooks; unique
	URL    *url.URL // scheme and host count
	Weight float64  // beside the others; 0 means 1
	Drain  bool     // it gets nothing new; what it has goes on
}

// Config is how endpoints are chosen. The zero value is the default.
type Config struct {
	Algorithm Algorithm // "" means Latency

	Affinity string  // the field whose value binds requests to an endpoint; "" = none
	Bound    float64 // of requests at a bound endpoint, beside its fair share; 0 means 1.25

	SlowStart time.Duration // an endpoint that comes, or comes back, has its full weight after this; 0 = at once
	Eject     Ejection

	LoadPath     string        // where endpoints show their load, as Prometheus text; "" = nowhere
	LoadInterval time.Duration // 0 means 1 s
	ProbePath    string        // what is asked for to see whether an endpoint lives; "" = nothing
	ProbeEvery   time.Duration // 0 means 10 s
	ProbeTimeout time.Duration // of a probe, and of a page at most; 0 means 2 s

	OnDone  func(endpoint string, r Result)                // an attempt is over. It must not block
	OnEject func(endpoint string, why Reason, capped bool) // one is left out, or would be if not too many were
	Rand    func() float64                                 // in [0, 1); nil means math/rand/v2
}

// Ejection is when an endpoint is left out, and for how long. The zero value is the
// default.
type Ejection struct {
	After   int           // failures in a row; 0 means 5, negative never
	Time    time.Duration // of the first time; doubled for each that follows; 0 means 10 s
	MaxTime time.Duration // 0 means 5 min
	Share   float64       // of the endpoints, that may be out at once; 0 means 0.5
	Slow    float64       // first bytes later than this times the others' median are failures; 0 = they are not
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Algorithm = cmp.Or(c.Algorithm, Latency)
	c.Bound = cmp.Or(c.Bound, 1.25)
	c.Eject.After = cmp.Or(c.Eject.After, 5)
	c.Eject.Time = cmp.Or(c.Eject.Time, 10*time.Second)
	c.Eject.MaxTime = cmp.Or(c.Eject.MaxTime, max(5*time.Minute, c.Eject.Time))
	c.Eject.Share = cmp.Or(c.Eject.Share, 0.5)
	c.LoadInterval = cmp.Or(c.LoadInterval, time.Second)
	c.ProbeEvery = cmp.Or(c.ProbeEvery, 10*time.Second)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, 2*time.Second)
	c.Affinity = http.CanonicalHeaderKey(c.Affinity)
	if c.OnDone == nil {
		c.OnDone = func(string, Result) {}
	}
	if c.OnEject == nil {
		c.OnEject = func(string, Reason, bool) {}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	d := c.WithDefaults()
	within := func(v, least, most float64) bool { return v >= least && v <= most } // false for NaN
	switch {
	case !slices.Contains([]Algorithm{RoundRobin, LeastRequest, Latency}, d.Algorithm):
		return fmt.Errorf("route: unknown algorithm %q", c.Algorithm)
	case !within(d.Bound, 1, 100):
		return fmt.Errorf("route: bound is %v, want 1 to 100: below 1 not all requests have a place", c.Bound)
	case !within(d.Eject.Share, 0, 1):
		return fmt.Errorf("route: the share of endpoints that may be out is %v, want 0 to 1", c.Eject.Share)
	case d.Eject.Slow != 0 && !within(d.Eject.Slow, 1.5, 1000):
		return fmt.Errorf("route: slow is %v, want 1.5 to 1000 times the others' median, or 0", c.Eject.Slow)
	case c.SlowStart < 0 || d.Eject.Time < 0 || d.LoadInterval < 0 || d.ProbeEvery < 0 || d.ProbeTimeout < 0:
		return errors.New("route: negative time")
	case d.Eject.MaxTime < d.Eject.Time:
		return fmt.Errorf("route: the longest ejection %v is shorter than the first %v", c.Eject.MaxTime, d.Eject.Time)
	case d.LoadPath != "" && !strings.HasPrefix(d.LoadPath, "/"), d.ProbePath != "" && !strings.HasPrefix(d.ProbePath, "/"):
		return errors.New("route: a path of endpoints begins with /")
	}
	return nil
}

// check reports endpoints that cannot be chosen from.
func check(list []Endpoint) error {
	if len(list) == 0 || len(list) > MaxEndpoints {
		return fmt.Errorf("route: %d endpoints, want 1 to %d", len(list), MaxEndpoints)
	}
	names, origins, left := map[string]bool{}, map[string]bool{}, 0
	for _, e := range list {
		if e.URL == nil || e.URL.Host == "" {
			return fmt.Errorf("route: endpoint %q has no host", e.Name)
		}
		key := e.URL.Scheme + "://" + e.URL.Host
		if names[e.Name] || origins[key] {
			return fmt.Errorf("route: endpoint %q stands twice", e.Name)
		}
		names[e.Name], origins[key] = true, true
		if e.Weight < 0 || math.IsNaN(e.Weight) || math.IsInf(e.Weight, 0) {
			return fmt.Errorf("route: endpoint %q has the weight %v", e.Name, e.Weight)
		}
		if !e.Drain {
			left++
		}
	}
	if left == 0 {
		return errors.New("route: all endpoints are drained")
	}
	return nil
}
