// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"golang.org/x/net/http/httpguts"
)

// Bounds of endpoints.
const (
	maxEndpoints = 256
	maxWeight    = 1000.0
)

// An Endpoint is one of several servers of an upstream.
type Endpoint struct {
	Name   string
	URL    *url.URL // scheme and host
	Weight float64
}

// Routing is how one of the endpoints is chosen.
type Routing struct {
	Algorithm     string             // latency, least_request or round_robin
	Weights       map[string]float64 // over those of the endpoints
	Drain         []string
	Affinity      string // "" = none
	AffinityBound float64
	SlowStart     Duration

	EjectAfter              int // 0 = never
	EjectTime, EjectMaxTime Duration
	EjectShare, EjectSlow   float64 // EjectSlow 0 = not for that

	LoadPath, ProbePath         string // "" = none
	LoadInterval, ProbeInterval Duration
}

// readEndpoints reads a list of {url, weight, name}.
func (p *parser) readEndpoints(n *yaml.Node, path string) {
	if n.Kind != yaml.SequenceNode {
		p.addf(n.Line, path, "needs a list: [{url: https://a.example.com, weight: 2}, {url: https://b.example.com}]")
		return
	}
	v := value{line: n.Line, endpoints: []Endpoint{}}
	for _, item := range n.Content {
		if e, ok := p.endpoint(item, path); ok {
			v.endpoints = append(v.endpoints, e)
		}
	}
	if len(v.endpoints) > maxEndpoints {
		p.addf(n.Line, path, "%d endpoints are more than %d", len(v.endpoints), maxEndpoints)
	}
	p.values[path] = v
}

// endpoint reads one of them.
func (p *parser) endpoint(n *yaml.Node, path string) (e Endpoint, ok bool) {
	const want = "each needs a url, and may have a weight and a name: {url: https://a.example.com, weight: 2, name: a}"
	if n.Kind != yaml.MappingNode || n.Anchor != "" {
		p.addf(n.Line, path, want)
		return e, false
	}
	said := make(map[string]string)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		text, good := p.text(n.Content[i+1], join(path, name))
		if _, twice := said[name]; twice || !slices.Contains([]string{"url", "weight", "name"}, name) || n.Content[i].Kind != yaml.ScalarNode {
			p.addf(n.Content[i].Line, path, want)
			return e, false
		}
		if !good {
			return e, false
		}
		said[name] = text
	}
	u, err := url.Parse(said["url"])
	switch {
	case err != nil || u.Hostname() == "" || !validHost(u.Hostname()) || !validPort(u.Port(), "443"):
		p.addf(n.Line, path, "%s", want)
		return e, false
	case u.Scheme != "https" && u.Scheme != "http":
		p.addf(n.Line, path, "an endpoint's url needs https:// (or http:// for a local server)")
		return e, false
	case strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		p.addf(n.Line, path, "an endpoint's url has a scheme and a host alone: the path is that of the upstream's url, credentials go into headers.set")
		return e, false
	}
	e = Endpoint{URL: &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host)}, Weight: 1}
	e.Name = cmp.Or(said["name"], e.URL.Host)
	if text, set := said["weight"]; set {
		if e.Weight, ok = weight(text); !ok {
			p.addf(n.Line, path, "%q is no weight, above 0 to %v: to take an endpoint out use routing.drain", text, maxWeight)
			return e, false
		}
	}
	if strings.ContainsAny(e.Name, "/ {},\"'") || len(e.Name) > 100 {
		p.addf(n.Line, path, "%q is no name: no blanks, slashes, quotes, commas or braces", e.Name)
		return e, false
	}
	return e, true
}

// weight reads a weight.
func weight(text string) (float64, bool) {
	w, err := strconv.ParseFloat(text, 64)
	return w, err == nil && w > 0 && w <= maxWeight
}

func (p *parser) routing(name string) Routing {
	at := func(path string) value { return p.upstreamValue(name, "routing."+path) }
	r := Routing{
		Algorithm: at("algorithm").text, Drain: at("drain").list, Affinity: at("affinity").text, AffinityBound: float(at("affinity_bound").text),
		SlowStart: duration(at("slow_start").text), EjectAfter: number(at("eject_after").text),
		EjectTime: duration(at("eject_time").text), EjectMaxTime: duration(at("eject_max_time").text),
		EjectShare: float(at("eject_share").text), EjectSlow: float(at("eject_slow").text),
		LoadPath: at("load_path").text, LoadInterval: duration(at("load_interval").text),
		ProbePath: at("probe_path").text, ProbeInterval: duration(at("probe_interval").text), Weights: map[string]float64{},
	}
	for e, text := range at("weights").dict {
		r.Weights[e] = float(text) // those that are none were found when they were read
	}
	return r
}

// weights are those in force.
func (u *Upstream) weights() {
	for i := range u.Endpoints {
		if w, ok := u.Routing.Weights[u.Endpoints[i].Name]; ok {
			u.Endpoints[i].Weight = w
		}
	}
}

// Drained says whether an endpoint gets nothing new.
func (u *Upstream) Drained(endpoint string) bool { return slices.Contains(u.Routing.Drain, endpoint) }

// endpoints refuses lists and settings that contradict each other.
func (c *checker) endpoints(u Upstream) {
	line, key := c.origin(u.Name, "endpoints")
	names, hosts := map[string]bool{}, map[string]bool{}
	for _, e := range u.Endpoints {
		origin := e.URL.Scheme + "://" + authority(e.URL)
		switch {
		case hosts[origin]:
			c.addf(line, key, "%s stands twice: give it more weight instead", e.URL)
		case names[e.Name]:
			c.addf(line, key, "two endpoints are named %s", e.Name)
		}
		names[e.Name], hosts[origin] = true, true
		ip, err := netip.ParseAddr(e.URL.Hostname())
		if e.URL.Scheme == "http" && e.URL.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
			c.warnf(line, key, "http:// sends keys and prompts in clear over the network")
		}
	}
	c.routing(u, names)
}

func (c *checker) routing(u Upstream, names map[string]bool) {
	r := u.Routing
	at := func(path string) (int, string) { return c.origin(u.Name, "routing."+path) }
	addf := func(path, format string, args ...any) {
		line, key := at(path)
		c.addf(line, key, format, args...)
	}
	if len(names) == 0 {
		for path, set := range map[string]bool{"weights": len(r.Weights) > 0, "drain": len(r.Drain) > 0, "affinity": r.Affinity != "",
			"load_path": r.LoadPath != "", "probe_path": r.ProbePath != ""} {
			if line, key := at(path); set && strings.HasPrefix(key, "upstreams.") {
				c.warnf(line, key, "does nothing without endpoints")
			}
		}
	} else {
		for _, e := range slices.Sorted(maps.Keys(r.Weights)) {
			if !names[e] {
				addf("weights", "there is no endpoint %q", e)
			}
		}
		left := len(names)
		for _, e := range r.Drain {
			if !names[e] {
				addf("drain", "there is no endpoint %q", e)
			}
			left--
		}
		if left <= 0 {
			addf("drain", "drains all endpoints: leave one")
		}
	}
	if slices.Sort(r.Drain); len(slices.Compact(slices.Clone(r.Drain))) < len(r.Drain) {
		addf("drain", "names one twice")
	}
	if r.Affinity != "" && !httpguts.ValidHeaderFieldName(r.Affinity) {
		addf("affinity", "%q is no field name", r.Affinity)
	}
	for path, b := range map[string]struct{ v, least, most float64 }{
		"affinity_bound": {r.AffinityBound, 1, 100}, "eject_share": {r.EjectShare, 0, 1},
	} {
		if !(b.v >= b.least && b.v <= b.most) {
			addf(path, "%v is outside %v to %v", b.v, b.least, b.most)
		}
	}
	if r.EjectSlow != 0 && !(r.EjectSlow >= 1.5 && r.EjectSlow <= 1000) {
		addf("eject_slow", "%v is outside 1.5 to 1000, and not 0", r.EjectSlow)
	}
	if r.EjectTime <= 0 || r.EjectMaxTime < r.EjectTime {
		addf("eject_time", "%v is not between 0s and routing.eject_max_time (%v)", r.EjectTime, r.EjectMaxTime)
	}
	for path, v := range map[string]string{"load_path": r.LoadPath, "probe_path": r.ProbePath} {
		if v != "" && (!strings.HasPrefix(v, "/") || strings.ContainsAny(v, "# ")) {
			addf(path, "a path begins with /, such as /metrics")
		}
	}
	for path, d := range map[string]Duration{"load_interval": r.LoadInterval, "probe_interval": r.ProbeInterval} {
		if d < leastInterval {
			addf(path, "%v is less than %v", d, leastInterval)
		}
	}
}

// leastInterval keeps an endpoint from being asked all the time.
const leastInterval = Duration(100e6) // 100 ms

// authority is host:port of a URL.
func authority(u *url.URL) string {
	return u.Hostname() + ":" + cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

func showEndpoints(list []Endpoint) []map[string]any {
	out := make([]map[string]any, 0, len(list))
	for _, e := range list {
		out = append(out, map[string]any{"url": e.URL.String(), "weight": e.Weight, "name": e.Name})
	}
	return out
}

func (r Routing) show() map[string]any {
	return map[string]any{"algorithm": r.Algorithm, "weights": r.Weights, "drain": r.Drain, "affinity": r.Affinity, "affinity_bound": r.AffinityBound,
		"slow_start": r.SlowStart.String(), "eject_after": r.EjectAfter, "eject_time": r.EjectTime.String(), "eject_max_time": r.EjectMaxTime.String(),
		"eject_share": r.EjectShare, "eject_slow": r.EjectSlow, "load_path": r.LoadPath, "load_interval": r.LoadInterval.String(),
		"probe_path": r.ProbePath, "probe_interval": r.ProbeInterval.String()}
}
