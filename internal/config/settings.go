// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// A Setting is a key that may be changed while Warmwire runs.
type Setting struct {
	Key     string   `json:"key"` // of an upstream without upstreams.NAME.
	Scope   string   `json:"scope"`
	Kind    string   `json:"kind"`
	Default string   `json:"default"`
	Options []string `json:"options,omitempty"`
	Doc     string   `json:"doc"`
	// Reopens says that a change opens the upstream's connections anew; what runs ends on
	// the old ones.
	Reopens bool `json:"reopens,omitempty"`
}

// Settings are all such keys: those of scope top, and of scope upstream those that each
// upstream has.
func Settings() (all []Setting) {
	add := func(scope string, keys []key, list []string) {
		for _, k := range keys {
			if tunable(list, k.path) {
				all = append(all, Setting{k.path, scope, string(k.kind), k.def, k.options, k.doc, scope == "upstream" && tunable(reopening, k.path)})
			}
		}
	}
	add("top", topKeys, tunableTop)
	add("upstream", upstreamKeys, tunableUpstream)
	return all
}

// reopening are the keys of an upstream with which its connections were opened.
var reopening = []string{"timeouts.connect", "timeouts.tls_handshake", "timeouts.request_write", "timeouts.response_header", "pool.", "buffer.stream_limit",
	"websocket_http2", "protocols", "congestion_control"}

// Reopens says whether a change of an upstream's key opens its connections anew.
func Reopens(key string) bool {
	return tunable(reopening, key) || key == "url" || strings.HasPrefix(key, "tls.")
}

// Values are the settings in force by their full path, as they would stand in the file.
func (c *Config) Values() map[string]string {
	var all map[string]any
	if err := yaml.Unmarshal(c.Show(), &all); err != nil {
		panic(fmt.Sprintf("config: internal error: %v", err)) // our own text
	}
	values := map[string]string{}
	put := func(path string, tree any, key string) {
		for part := range strings.SplitSeq(key, ".") {
			branch, ok := tree.(map[string]any)
			if !ok {
				return
			}
			if tree, ok = branch[part]; !ok {
				return
			}
		}
		values[path] = asWritten(tree)
	}
	for _, s := range Settings() {
		if s.Scope == "top" {
			put(s.Key, all, s.Key)
			continue
		}
		ups, _ := all["upstreams"].(map[string]any)
		for name, u := range ups {
			put("upstreams."+name+"."+s.Key, u, s.Key)
		}
	}
	return values
}

// asWritten is a value as it would stand in the file: JSON is YAML, and text without
// quotes is easier to read.
func asWritten(v any) string {
	if s, ok := v.(string); ok && s != "" {
		return s
	}
	text, err := json.Marshal(v)
	if err != nil { // YAML may have keys that JSON has not
		return fmt.Sprint(v)
	}
	return string(text)
}

// Changed lists the settings in which now differs from c, sorted.
func (c *Config) Changed(now *Config) (keys []string) {
	before, after := c.Values(), now.Values()
	for key, v := range after {
		if old, there := before[key]; !there || old != v {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
