// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// classNames are the priority classes, most urgent first.
var classNames = []string{"interactive", "default", "batch"}

// A ClassRule gives requests to a path their class.
type ClassRule struct {
	Path  string // from /; a * at its end stands for anything
	Class string
}

// rules reads a list of {path, class}. The first that fits a path counts.
func (p *parser) rules(n *yaml.Node, path string, k *key) {
	if n.Kind != yaml.SequenceNode {
		p.addf(n.Line, path, "needs a list: [{path: /v1/batches*, class: batch}]")
		return
	}
	v := value{line: n.Line, rules: []ClassRule{}}
	for _, item := range n.Content {
		if r, ok := p.rule(item, path, k); ok {
			v.rules = append(v.rules, r)
		}
	}
	p.values[path] = v
}

// rule reads one of them.
func (p *parser) rule(n *yaml.Node, path string, k *key) (r ClassRule, ok bool) {
	if n.Kind != yaml.MappingNode || n.Anchor != "" {
		p.addf(n.Line, path, "each needs a path and a class: {path: /v1/batches*, class: batch}")
		return r, false
	}
	said := make(map[string]string)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		text, good := p.text(n.Content[i+1], join(path, name))
		if _, twice := said[name]; twice || name != "path" && name != "class" || n.Content[i].Kind != yaml.ScalarNode {
			p.addf(n.Content[i].Line, path, "each needs one path and one class, and nothing else")
			return r, false
		}
		if !good {
			return r, false
		}
		said[name] = text
	}
	r = ClassRule{said["path"], said["class"]}
	rest := strings.TrimSuffix(r.Path, "*")
	if !strings.HasPrefix(rest, "/") || strings.ContainsAny(rest, "*?# ") {
		p.addf(n.Line, path, "a path begins with / and may end with *, such as /v1/batches*; it has no query")
		return r, false
	}
	if !slices.Contains(k.options, r.Class) {
		p.addf(n.Line, path, "a class is one of %s", strings.Join(k.options, ", "))
		return r, false
	}
	return r, true
}

// unreachableRules warns of rules that stand behind one which takes all their paths.
func (c *checker) unreachableRules(u Upstream) {
	line, key := c.origin(u.Name, "classes")
	for i, r := range u.Classes {
		for _, earlier := range u.Classes[:i] {
			prefix, wide := strings.CutSuffix(earlier.Path, "*")
			if earlier.Path == r.Path || wide && strings.HasPrefix(r.Path, prefix) {
				c.warnf(line, key, "%s stands behind %s, which takes all its paths: put it before that", r.Path, earlier.Path)
			}
		}
	}
}

func showRules(rules []ClassRule) []map[string]string {
	out := make([]map[string]string, 0, len(rules))
	for _, r := range rules {
		out = append(out, map[string]string{"path": r.Path, "class": r.Class})
	}
	return out
}

// limits are those of one upstream.
func (p *parser) limits(name string) UpstreamLimits {
	at := func(path string) string { return p.upstreamValue(name, "limits."+path).text }
	l := UpstreamLimits{
		Concurrency: number(at("concurrency")), Adaptive: at("adaptive") == "true", Floor: number(at("floor")), Pace: at("pace") == "true",
		Queue: number(at("queue")), QueueTimeout: duration(at("queue_timeout")),
	}
	_, key := p.origin(name, "limits.floor")
	if _, set := p.values[key]; !set && l.Concurrency > 0 {
		l.Floor = min(l.Floor, l.Concurrency)
	}
	return l
}

// limits refuses bounds that contradict each other, and warns of those that do nothing.
func (c *checker) limits(u Upstream) {
	l := u.Limits
	set := func(path string) (line int, key string, ok bool) {
		line, key = c.origin(u.Name, "limits."+path)
		_, ok = c.values[key]
		return line, key, ok
	}
	for _, b := range []struct {
		path     string
		n, least int
	}{{"concurrency", l.Concurrency, 0}, {"queue", l.Queue, 1}} {
		if b.n < b.least || b.n > 100_000 {
			line, key, _ := set(b.path)
			c.addf(line, key, "%d is outside %d to 100000", b.n, b.least)
		}
	}
	if line, key, _ := set("queue_timeout"); l.QueueTimeout <= 0 {
		c.addf(line, key, "needs a time above 0s: a request cannot wait for ever")
	}
	line, key, floored := set("floor")
	switch {
	case !floored:
	case !l.Adaptive:
		c.warnf(line, key, "does nothing without limits.adaptive")
	case l.Concurrency > 0 && l.Floor > l.Concurrency:
		c.addf(line, key, "%d is more than limits.concurrency (%d)", l.Floor, l.Concurrency)
	}
	for _, path := range []string{"queue", "queue_timeout"} {
		if line, key, ok := set(path); ok && !l.Any() {
			c.warnf(line, key, "does nothing without limits.concurrency, limits.adaptive or limits.pace")
		}
	}
}

func (l UpstreamLimits) show() map[string]any {
	return map[string]any{"concurrency": l.Concurrency, "adaptive": l.Adaptive, "floor": l.Floor, "pace": l.Pace, "queue": l.Queue,
		"queue_timeout": l.QueueTimeout.String()}
}
