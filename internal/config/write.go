// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// hidden stands for a secret wherever a configuration is shown.
const hidden = "****"

// Default returns a file with every key, its default and a sentence. It loads to
// the same as no file.
func Default() []byte {
	var b bytes.Buffer
	b.WriteString("# Warmwire configuration. Every key is optional; these are the defaults.\n" +
		"# Durations: 250ms, 5m. Sizes: 64KiB. ${NAME} takes an environment variable, $$ is a dollar.\n\n")
	tree(topKeys, func(depth int, name string, k *key) {
		indent := strings.Repeat("  ", depth)
		switch {
		case k == nil:
			fmt.Fprintf(&b, "%s%s:\n", indent, name)
		case k.path == "listen.addresses":
			fmt.Fprintf(&b, "%s# %s\n%s# %s: %s\n", indent, k.doc, indent, name, k.def)
		default:
			fmt.Fprintf(&b, "%s# %s\n%s%s: %s\n", indent, k.doc, indent, name, written(k))
		}
	})
	b.WriteString("\n# For all upstreams.\ndefaults:\n")
	tree(upstreamKeys, func(depth int, name string, k *key) {
		indent := strings.Repeat("  ", depth+1)
		switch {
		case k == nil && name == "headers": // its only key is ownOnly
		case k == nil:
			fmt.Fprintf(&b, "%s%s:\n", indent, name)
		case !slices.Contains(ownOnly, k.path):
			fmt.Fprintf(&b, "%s# %s\n%s%s: %s\n", indent, k.doc, indent, name, written(k))
		}
	})
	writeNamed(&b)
	b.WriteString("\n# One entry an API; each takes the settings of defaults, and url. Built in:\nupstreams:\n")
	for _, u := range builtins {
		fmt.Fprintf(&b, "  %s: {url: %s}\n", u.name, u.url)
	}
	return b.Bytes()
}

// namedDocs say what the sections of names hold.
var namedDocs = map[string]string{
	"tenants": "Who may call. With any, everybody else is refused, and no app's own key goes on to an upstream.",
	"roles":   "What tenants may do.",
}

// writeNamed shows the settings of tenants and roles; there are none by default.
func writeNamed(b *bytes.Buffer) {
	for _, section := range []string{"tenants", "roles"} {
		fmt.Fprintf(b, "\n# %s\n%s: {}\n#  name:\n", namedDocs[section], section)
		tree(nameSections[section], func(depth int, name string, k *key) {
			indent := "#" + strings.Repeat("  ", depth+2)
			if k == nil {
				fmt.Fprintf(b, "%s%s:\n", indent, name)
				return
			}
			fmt.Fprintf(b, "%s# %s\n%s%s: %s\n", indent, k.doc, indent, name, written(k))
		})
	}
}

func written(k *key) string {
	if k.def == "" {
		return `""`
	}
	if k.kind == kText && strings.ContainsAny(k.def[:1], "0123456789") && !strings.Contains(k.def, ":") {
		return `"` + k.def + `"` // 1.2 would read as a number
	}
	return k.def
}

// tree visits keys with the sections above them.
func tree(keys []key, visit func(depth int, name string, k *key)) {
	var open []string
	for i := range keys {
		parts := strings.Split(keys[i].path, ".")
		section := parts[:len(parts)-1]
		common := 0
		for common < min(len(open), len(section)) && open[common] == section[common] {
			common++
		}
		for d := common; d < len(section); d++ {
			visit(d, section[d], nil)
		}
		open = section
		visit(len(section), parts[len(parts)-1], &keys[i])
	}
}

func (d DNS) show() map[string]any {
	return map[string]any{
		"mode": d.Mode, "resolvers": d.Resolvers, "bootstrap": d.Bootstrap, "ca_file": d.CAFile, "stale": d.Stale.String(),
		"min_ttl": d.MinTTL.String(), "cache_file": cmp.Or(d.CacheFile, "none"), "system_domains": d.SystemDomains, "hosts_file": d.HostsFile,
		"listen": d.Listen,
	}
}

func (b Buffer) show() map[string]any {
	return map[string]any{"stream_limit": b.StreamLimit.String(), "policy": b.Policy, "spool_limit": b.SpoolLimit.String(),
		"stall_timeout": b.StallTimeout.String()}
}

func (r Retry) show() map[string]any {
	return map[string]any{"max_attempts": r.MaxAttempts, "budget": r.Budget, "statuses": r.Statuses, "resets": r.Resets, "base_delay": r.BaseDelay.String(),
		"max_delay": r.MaxDelay.String(), "replay_body": r.ReplayBody.String(), "hedge": r.Hedge, "hedge_budget": r.HedgeBudget}
}

// orAuto is a bound of which 0 means auto.
func (n Size) orAuto() string {
	if n == 0 {
		return "auto"
	}
	return n.String()
}

// Show returns c as YAML, with secrets as ****.
func (c *Config) Show() []byte {
	out, err := yaml.Marshal(c.show(masked))
	if err != nil {
		panic(fmt.Sprintf("config: internal error: %v", err)) // plain maps and strings
	}
	return bytes.ReplaceAll(out, []byte("$"), []byte("$$"))
}

// show is c as the file could have it, with what conceal makes of secrets.
func (c *Config) show(conceal func(string) string) map[string]any {
	ups := make(map[string]any, len(c.Upstreams))
	for _, u := range c.Upstreams {
		headers := make(map[string]string, len(u.Headers))
		for name, value := range u.Headers {
			headers[name] = conceal(cmp.Or(value, hidden))
		}
		ups[u.Name] = map[string]any{
			"url": u.URL.String(), "endpoints": showEndpoints(u.Endpoints), "routing": u.Routing.show(), "dialect": u.Dialect, "congestion_control": u.CongestionControl, "qlog_dir": u.QlogDir, "protocols": u.Protocols, "headers": map[string]any{"set": headers},
			"error_event": u.ErrorEvent, "priority": u.Priority, "classes": showRules(u.Classes), "pool": u.Pool.show(), "limits": u.Limits.show(),
			"timeouts": u.Timeouts.show(), "buffer": u.Buffer.show(), "retry": u.Retry.show(), "resume": u.Resume, "reconnect": u.Reconnect, "websocket_http2": u.WebSocketHTTP2,
			"heartbeat": map[string]any{"mode": u.Heartbeat.Mode, "min_interval": u.Heartbeat.MinInterval.String(), "max_interval": u.Heartbeat.MaxInterval.String(),
				"timeout": u.Heartbeat.Timeout.String(), "sse_comments": u.Heartbeat.SSEComments.String(), "search": u.Heartbeat.Search},
			"reattach": map[string]any{"wait": u.Reattach.Wait.String(), "limit": u.Reattach.Limit.String()},
			"tls": map[string]any{"ca_file": u.TLS.CAFile, "ca_only": u.TLS.CAOnly, "intermediates_file": u.TLS.IntermediatesFile,
				"pins": u.TLS.Pins, "pins_report_only": u.TLS.PinsReportOnly, "ech": u.TLS.ECH,
				"client_cert": u.TLS.ClientCert, "client_key": u.TLS.ClientKey, "min_version": u.TLS.MinVersion},
		}
	}
	for _, b := range builtins { // else they would be back when this is loaded
		if _, there := ups[b.name]; !there {
			ups[b.name] = map[string]any{"disabled": true}
		}
	}
	parent := c.ParentProxy
	if u, err := url.Parse(parent); err == nil && u.User != nil && conceal(u.User.String()) != u.User.String() {
		u.User = url.User("hidden")
		parent = u.String()
	}
	all := map[string]any{
		"listen": map[string]any{"addresses": c.Listen.Addresses, "token": conceal(c.Listen.Token), "allow_hosts": c.Listen.AllowHosts,
			"allow_origins": c.Listen.AllowOrigins, "allow_uids": c.Listen.AllowUIDs, "via": c.Listen.Via, "server_timing": c.Listen.ServerTiming},
		"admin":   map[string]any{"address": c.Admin.Address, "token_file": c.Admin.TokenFile},
		"forward": map[string]any{"default": c.Forward.Default, "deny": c.Forward.Deny, "idle_timeout": c.Forward.IdleTimeout.String()}, "parent_proxy": parent,
		"intercept": map[string]any{"hosts": c.Intercept.Hosts, "blind": c.Intercept.Blind}, "no_proxy": c.NoProxy,
		"dns": c.DNS.show(), "tls": map[string]any{"session_file": cmp.Or(c.TLS.SessionFile, "none"), "session_key": conceal(c.TLS.SessionKey)},
		"state_dir": c.StateDir, "spool_dir": c.SpoolDir,
		"limits": map[string]any{"memory": c.Limits.Memory.orAuto(), "connections": c.Limits.Connections, "header": c.Limits.Header.String(), "body": c.Limits.Body.String(),
			"procs": c.Limits.Procs},
		"log":       map[string]any{"level": c.Log.Level, "format": c.Log.Format, "access": c.Log.Access.show()},
		"telemetry": map[string]any{"otlp": c.Telemetry.OTLP.show()},
		"drain":     map[string]any{"wait": c.Drain.Wait.String(), "timeout": c.Drain.Timeout.String(), "upgrade_timeout": c.Drain.UpgradeTimeout.String()},
		"defaults":  map[string]any{"timeouts": c.DefaultTimeouts.show(), "buffer": c.DefaultBuffer.show()},
		"upstreams": ups,
	}
	c.showTenants(all, conceal)
	return all
}

func (t Timeouts) show() map[string]string {
	return map[string]string{"connect": t.Connect.String(), "tls_handshake": t.TLSHandshake.String(),
		"request_write": t.RequestWrite.String(), "response_header": t.ResponseHeader.String(),
		"first_token": t.FirstToken.String(), "idle": t.Idle.String(), "total": t.Total.String()}
}

func (p Pool) show() map[string]any {
	return map[string]any{"warm": p.Warm, "max_connections": p.MaxConnections, "max_h1_connections": p.MaxH1Connections,
		"max_streams": p.MaxStreams, "idle_timeout": p.IdleTimeout.String(), "queue_timeout": p.QueueTimeout.String()}
}

// Schema returns a JSON Schema (2020-12) of the file, for editors.
func Schema() []byte {
	upstream := object(upstreamKeys, nil)
	defaults := object(upstreamKeys, ownOnly)
	root := object(topKeys, nil)
	props := root["properties"].(map[string]any)
	props["defaults"] = defaults
	props["upstreams"] = map[string]any{"type": "object", "additionalProperties": upstream,
		"propertyNames": map[string]any{"pattern": "^[a-z0-9][a-z0-9_-]*$"}, "description": "One entry an API."}
	for section, keys := range nameSections {
		props[section] = map[string]any{"type": []string{"object", "null"}, "additionalProperties": object(keys, nil),
			"propertyNames": map[string]any{"pattern": "^[a-z0-9][a-z0-9_-]*$"}, "description": namedDocs[section]}
	}
	root["$schema"], root["title"] = "https://json-schema.org/draft/2020-12/schema", "Warmwire configuration"
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("config: internal error: %v", err)) // plain maps and strings
	}
	return append(out, '\n')
}

func object(keys []key, without []string) map[string]any {
	newObject := func() map[string]any {
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": false, "properties": map[string]any{}}
	}
	root := newObject()
	stack := []map[string]any{root}
	tree(keys, func(depth int, name string, k *key) {
		props := stack[depth]["properties"].(map[string]any)
		switch {
		case k == nil:
			section := newObject()
			props[name] = section
			stack = append(stack[:depth+1], section)
		case !slices.Contains(without, k.path):
			props[name] = k.schema()
		}
	})
	return root
}

// schema is the JSON Schema of one key. ${NAME} may stand wherever text may.
func (k *key) schema() map[string]any {
	variable := map[string]any{"type": "string", "pattern": `\$\{`}
	s := map[string]any{"type": "string"}
	switch k.kind {
	case kBool:
		s = map[string]any{"anyOf": []any{map[string]any{"type": "boolean"}, variable}}
	case kInt:
		least := 1
		if k.zero {
			least = 0
		}
		s = map[string]any{"anyOf": []any{map[string]any{"type": "integer", "minimum": least}, variable}}
	case kNumber:
		s = map[string]any{"anyOf": []any{map[string]any{"type": "number"}, variable}}
	case kDuration:
		s["pattern"] = `^([0-9.]+(ns|us|µs|ms|s|m|h))+$|^0$|\$\{`
	case kSize:
		s = map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9]+ *(KiB|MiB|GiB)?$|\$\{`}
	case kBound:
		s = map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9]+ *(KiB|MiB|GiB)?$|^auto$|\$\{`}
	case kList:
		s = map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
		if len(k.options) > 0 {
			s["items"] = map[string]any{"enum": k.options}
		}
	case kInts:
		s = map[string]any{"type": "array", "items": map[string]any{"type": "integer", "minimum": 0}}
	case kMap:
		s = map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
	case kShares:
		shares := make(map[string]any)
		for _, name := range k.options {
			shares[name] = map[string]any{"anyOf": []any{map[string]any{"type": "number", "minimum": 0, "maximum": 1}, variable}}
		}
		s = map[string]any{"type": "object", "additionalProperties": false, "properties": shares}
	case kRules:
		s = map[string]any{"type": "array", "items": map[string]any{"type": "object", "additionalProperties": false, "required": []string{"path", "class"},
			"properties": map[string]any{"path": map[string]any{"type": "string", "pattern": `^/[^*?# ]*\*?$`}, "class": map[string]any{"enum": k.options}}}}
	case kEndpoints:
		s = map[string]any{"type": "array", "items": map[string]any{"type": "object", "additionalProperties": false, "required": []string{"url"},
			"properties": map[string]any{"url": map[string]any{"type": "string"}, "name": map[string]any{"type": "string"},
				"weight": map[string]any{"anyOf": []any{map[string]any{"type": "number", "exclusiveMinimum": 0, "maximum": maxWeight}, variable}}}}}
	case kWeights:
		s = map[string]any{"type": "object", "additionalProperties": map[string]any{"anyOf": []any{
			map[string]any{"type": "number", "exclusiveMinimum": 0, "maximum": maxWeight}, variable}}}
	case kText:
		if len(k.options) > 0 {
			s = map[string]any{"enum": k.options}
			if k.path == "tls.min_version" {
				s = map[string]any{"enum": []any{"1.2", "1.3", 1.2, 1.3}}
			}
		}
	}
	s["description"] = k.doc
	switch {
	case k.kind == kBool:
		s["default"] = k.def == "true"
	case k.kind == kInt || k.kind == kNumber:
		s["default"] = json.Number(k.def)
	case k.def != "" && !slices.Contains([]kind{kList, kInts, kMap, kShares, kWeights, kRules, kEndpoints}, k.kind):
		s["default"] = k.def
	}
	return s
}

// Markdown returns the reference of all keys.
func Markdown() []byte {
	var b bytes.Buffer
	table := func(keys []key) {
		b.WriteString("| key | type | default | meaning |\n|---|---|---|---|\n")
		for _, k := range keys {
			doc := k.doc
			if len(k.options) > 0 {
				doc += " One of: " + strings.Join(k.options, ", ") + "."
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.path, k.kind, code(k.def), strings.ReplaceAll(doc, "|", "\\|"))
		}
	}
	b.WriteString(markdownHead)
	table(topKeys)
	b.WriteString("\n## Upstreams\n\nEach stands under `upstreams.<name>`; all but `url`, `disabled`, `endpoints`, `headers.set`, `routing.weights` and `routing.drain` may also stand under `defaults`, for all upstreams.\n\n")
	table(upstreamKeys)
	b.WriteString("\nBuilt in:\n\n| name | url |\n|---|---|\n")
	for _, u := range builtins {
		fmt.Fprintf(&b, "| `%s` | %s |\n", u.name, u.url)
	}
	b.WriteString("\n## Tenants\n\nEach stands under `tenants.<name>`: " + namedDocs["tenants"] + " See tenants.md.\n\n")
	table(tenantKeys)
	b.WriteString("\n## Roles\n\nEach stands under `roles.<name>`: " + namedDocs["roles"] + "\n\n")
	table(roleKeys)
	b.WriteString(markdownTail)
	return b.Bytes()
}

func code(s string) string {
	if s == "" {
		return "–"
	}
	return "`" + s + "`"
}

const markdownHead = `# Configuration

<!-- Made from internal/config by its test: go test ./internal/config -update -->

One YAML file, looked for at ` + "`-c FILE`, `$WARMWIRE_CONFIG`, `$XDG_CONFIG_HOME/warmwire/warmwire.yaml`" + ` (or ` +
	"`~/.config/warmwire/warmwire.yaml`), `/etc/warmwire/warmwire.yaml`" + `; never in the current folder. Every key is optional: without a
file the built-in default serves the well-known APIs. Durations are written ` + "`250ms`, `5m`; sizes `64KiB`; `${NAME}`" + ` takes an environment
variable (a missing one is an error, and an empty one in listen.token and headers.set), ` + "`$$`" + ` is a dollar.

` + "`warmwire config check`" + ` reports all problems with file, line and key; ` + "`config default`" + ` prints this reference as a file, ` +
	"`config schema`" + ` a JSON Schema for editors, ` + "`config show`" + ` what applies, secrets masked. SIGHUP reads the file again: a bad one changes
nothing; listeners, ` + "`limits` and `admin`" + ` keep their values until a restart. [admin-api.md](admin-api.md): how to change it while Warmwire runs.

## Process

`

const markdownTail = `
## Combinations that are refused

A limit that can never act, since a shorter one covers it, is an error that names both keys: connect, tls_handshake, request_write,
first_token, response_header or idle longer than total. (A total that cuts a large upload looks like an upstream that stalls.) A listener
outside loopback needs ` + "`listen.token`" + `. Two upstreams cannot have the same host. ` + "`headers.set`" + ` cannot set fields of framing or routing.

## Examples

A key that apps need not know; only this user's programs may use the port then:

` + "```yaml\nupstreams:\n  openai:\n    headers: {set: {Authorization: \"Bearer ${OPENAI_API_KEY}\"}}\n```" + `

A model server of one's own, and a site with a proxy:

` + "```yaml\nparent_proxy: http://proxy.corp.example:3128\nno_proxy: [.corp.example]\nupstreams:\n  vllm:\n    url: https://vllm.corp.example\n    tls: {ca_file: /etc/ssl/corp-ca.pem}\n```" + `
`
