// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// tunableTop and tunableUpstream are the keys that may be changed while Warmwire runs
// without its file: how it behaves, and neither where it listens nor whom it trusts. A
// dot at the end stands for a section.
var (
	tunableTop      = []string{"limits.memory", "log.level", "log.access.sample", "telemetry.otlp.sample", "drain."}
	tunableUpstream = []string{"timeouts.", "priority", "classes", "limits.", "routing.", "pool.", "buffer.", "retry.", "resume", "reconnect", "websocket_http2", "reattach.", "heartbeat.", "error_event", "protocols", "congestion_control"}
)

func tunable(list []string, path string) bool {
	return slices.ContainsFunc(list, func(t string) bool { return t == path || strings.HasSuffix(t, ".") && strings.HasPrefix(path, t) })
}

// tune puts values over those of the file. Each is written as in the file, by its full
// dotted path: upstreams.NAME.KEY, defaults.KEY, or a key at the top.
func (p *parser) tune(tuned map[string]string) {
	for _, path := range slices.Sorted(maps.Keys(tuned)) {
		k := p.tunableKey(path)
		if k == nil {
			continue
		}
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(tuned[path]), &doc); err != nil || len(doc.Content) != 1 {
			p.addf(0, path, "the value is none as it would stand in the file")
			continue
		}
		n := doc.Content[0]
		n.Line = 0 // of no file
		p.scalar(n, path, k)
	}
}

// tunableKey finds the key of path, or says why there is none.
func (p *parser) tunableKey(path string) *key {
	keys, list, rel := topKeys, tunableTop, path
	if rest, ok := strings.CutPrefix(path, "defaults."); ok {
		keys, list, rel = upstreamKeys, tunableUpstream, rest
	} else if rest, ok := strings.CutPrefix(path, "upstreams."); ok {
		name, key, _ := strings.Cut(rest, ".")
		if !p.knows(name) {
			p.addf(0, path, "there is no upstream %q", clip(name))
			return nil
		}
		keys, list, rel = upstreamKeys, tunableUpstream, key
	} else if rest, ok := strings.CutPrefix(path, "tenants."); ok {
		name, key, _ := strings.Cut(rest, ".")
		if !slices.Contains(p.names["tenants"], name) {
			p.addf(0, path, "there is no tenant %q", clip(name))
			return nil
		}
		keys, list, rel = tenantKeys, tunableTenant, key
	}
	k, _ := find(keys, rel)
	switch {
	case k == nil:
		p.addf(0, path, "unknown key: `warmwire config default` lists all, with upstreams.NAME. or defaults. before those of an upstream")
	case !tunable(list, rel):
		p.addf(0, path, "cannot be changed while Warmwire runs: change the file, and reload or start again")
		return nil
	}
	return k
}

// HasVariable says whether text, as it would stand in the file, takes anything from the
// environment.
func HasVariable(text string) bool {
	var doc yaml.Node
	return yaml.Unmarshal([]byte(text), &doc) == nil && nodeHasVariable(&doc)
}

func nodeHasVariable(n *yaml.Node) bool {
	return hasVariable(n.Value) || slices.ContainsFunc(n.Content, nodeHasVariable)
}

// hasVariable is HasVariable for a value that was read.
func hasVariable(s string) bool {
	return strings.Contains(strings.ReplaceAll(s, "$$", " "), "${") // $$ stands for a dollar
}

// knows says whether an upstream is in the file or built in.
func (p *parser) knows(name string) bool {
	return slices.Contains(p.named, name) || slices.ContainsFunc(builtins, func(b struct{ name, url string }) bool { return b.name == name })
}
