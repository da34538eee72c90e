// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// resolve turns values and defaults into a Config. The second result says where
// each setting of an upstream comes from.
func (p *parser) resolve() (*Config, func(upstream, key string) (int, string)) {
	str := func(path string) string { return p.get(topKeys, path, path).text }
	list := func(path string) []string { return p.get(topKeys, path, path).list }
	cfg := &Config{
		Listen: Listen{
			Addresses: list("listen.addresses"), Token: str("listen.token"), AllowHosts: lower(list("listen.allow_hosts")),
			AllowOrigins: lower(list("listen.allow_origins")), Via: str("listen.via") == "true", ServerTiming: str("listen.server_timing") == "true",
		},
		Admin:       Admin{Address: str("admin.address"), TokenFile: str("admin.token_file")},
		Forward:     Forward{Default: str("forward.default"), Deny: list("forward.deny"), IdleTimeout: duration(str("forward.idle_timeout"))},
		Intercept:   Intercept{Hosts: lower(list("intercept.hosts")), Blind: lower(list("intercept.blind"))},
		ParentProxy: str("parent_proxy"), NoProxy: list("no_proxy"), StateDir: str("state_dir"),
		DNS: DNS{
			Mode: str("dns.mode"), Resolvers: list("dns.resolvers"), Bootstrap: list("dns.bootstrap"), CAFile: str("dns.ca_file"),
			Stale: duration(str("dns.stale")), MinTTL: duration(str("dns.min_ttl")), CacheFile: str("dns.cache_file"),
			SystemDomains: list("dns.system_domains"), HostsFile: str("dns.hosts_file"), Listen: str("dns.listen"),
		},
		Limits: Limits{
			Memory:      p.memory(),
			Connections: number(str("limits.connections")), Header: size(str("limits.header")),
			Body: size(str("limits.body")), Procs: number(str("limits.procs")),
		},
		Log:   Log{Level: str("log.level"), Format: str("log.format"), Access: p.access(str("log.format"))},
		Drain: Drain{Wait: duration(str("drain.wait")), Timeout: duration(str("drain.timeout")), UpgradeTimeout: duration(str("drain.upgrade_timeout"))},
	}
	for _, s := range list("listen.allow_uids") {
		n, _ := strconv.ParseUint(s, 10, 32) // checked when it was read
		cfg.Listen.AllowUIDs = append(cfg.Listen.AllowUIDs, uint32(n))
	}
	if len(cfg.Listen.Addresses) == 0 {
		cfg.Listen.Addresses = []string{str("listen.address")}
	} else if v, both := p.values["listen.address"]; both {
		p.addf(v.line, "listen.address", "stands beside listen.addresses: keep one of them")
	}
	if cfg.StateDir == "" {
		cfg.StateDir = p.stateDir()
	}
	if cfg.Admin.TokenFile == "auto" {
		cfg.Admin.TokenFile = filepath.Join(cfg.StateDir, "admin.token")
	}
	cfg.DNS.CacheFile = inState(cfg.StateDir, "dns.cache", cfg.DNS.CacheFile)
	cfg.TLS = Sessions{inState(cfg.StateDir, "tls.sessions", str("tls.session_file")), p.sessionKey()}
	cfg.SpoolDir = inState(cfg.StateDir, "spool", str("spool_dir"))
	cfg.Telemetry = p.telemetry()
	cfg.DefaultTimeouts, cfg.DefaultBuffer = p.timeouts(""), p.buffer("")
	cfg.Upstreams = p.resolveUpstreams()
	cfg.Tenants, cfg.Roles, cfg.JWT = p.tenants(), p.roles(), p.jwt()
	return cfg, p.origin
}

// inState is the file that a key names: auto is name in the state's folder, none is
// none.
func inState(dir, name, value string) string {
	switch value {
	case "auto":
		return filepath.Join(dir, name)
	case "none":
		return ""
	}
	return value
}

// sessionKey is tls.session_key, checked.
func (p *parser) sessionKey() string {
	const path = "tls.session_key"
	v := p.get(topKeys, path, path)
	if v.text != "" && v.text != hidden {
		if raw, err := base64.StdEncoding.DecodeString(v.text); err != nil || len(raw) != 32 {
			p.addf(v.line, path, "is not 32 bytes in base64: `openssl rand -base64 32` makes one")
		}
	}
	return v.text
}

// stateDir is where state is kept if the file does not say.
func (p *parser) stateDir() string {
	if dir, ok := p.getenv("STATE_DIRECTORY"); ok && filepath.IsAbs(dir) { // systemd's, the first of a list
		dir, _, _ = strings.Cut(dir, ":")
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/warmwire"
	}
	if dir, ok := p.getenv("XDG_STATE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "warmwire")
	}
	if home, ok := p.getenv("HOME"); ok && home != "" {
		return filepath.Join(home, ".local", "state", "warmwire")
	}
	return filepath.Join(os.TempDir(), "warmwire-"+strconv.Itoa(os.Geteuid()))
}

func (p *parser) resolveUpstreams() []Upstream {
	names := slices.Clone(p.named)
	for _, b := range builtins {
		if !slices.Contains(names, b.name) {
			names = append(names, b.name)
		}
	}
	slices.Sort(names)
	var out []Upstream
	for _, name := range names {
		if u, ok := p.resolveUpstream(name); ok {
			out = append(out, u)
		}
	}
	return out
}

func (p *parser) resolveUpstream(name string) (Upstream, bool) {
	val := func(path string) value { return p.upstreamValue(name, path) }
	if val("disabled").text == "true" {
		return Upstream{}, false
	}
	u := Upstream{
		Name: name, Builtin: !slices.Contains(p.named, name), Protocols: val("protocols").list, Headers: val("headers.set").dict,
		ErrorEvent: val("error_event").text == "true", Dialect: val("dialect").text, CongestionControl: val("congestion_control").text, QlogDir: val("qlog_dir").text,
		Priority: val("priority").text, Classes: val("classes").rules,
		Pool: Pool{number(val("pool.warm").text), number(val("pool.max_connections").text), number(val("pool.max_h1_connections").text),
			number(val("pool.max_streams").text), duration(val("pool.idle_timeout").text), duration(val("pool.queue_timeout").text)},
		Endpoints: val("endpoints").endpoints, Routing: p.routing(name),
		Limits:   p.limits(name),
		Timeouts: p.timeouts(name), Buffer: p.buffer(name), Retry: p.retry(name),
		Resume: val("resume").text == "true", Reconnect: val("reconnect").text == "true", WebSocketHTTP2: val("websocket_http2").text == "true",
		Heartbeat: Heartbeat{
			Mode: val("heartbeat.mode").text, MinInterval: duration(val("heartbeat.min_interval").text), MaxInterval: duration(val("heartbeat.max_interval").text),
			Timeout: duration(val("heartbeat.timeout").text), SSEComments: duration(val("heartbeat.sse_comments").text),
			Search: val("heartbeat.search").text == "true",
		},
		Reattach: Reattach{duration(val("reattach.wait").text), size(val("reattach.limit").text)},
		TLS: TLS{
			CAFile: val("tls.ca_file").text, IntermediatesFile: val("tls.intermediates_file").text, CAOnly: val("tls.ca_only").text == "true",
			Pins: val("tls.pins").list, PinsReportOnly: val("tls.pins_report_only").text == "true", ECH: val("tls.ech").text,
			ClientCert: val("tls.client_cert").text, ClientKey: val("tls.client_key").text, MinVersion: val("tls.min_version").text,
		},
	}
	raw, line := val("url").text, val("url").line
	if raw == "" {
		for _, b := range builtins {
			if b.name == name {
				raw = b.url
			}
		}
	}
	u.weights()
	if len(u.Endpoints) > 0 && raw == "" {
		raw, line = u.Endpoints[0].URL.String(), val("endpoints").line
	}
	path := join(join("upstreams", name), "url")
	if raw == "" {
		p.addf(p.values[join("upstreams", name)].line, path, "is needed: %q is no built-in upstream", name)
		return Upstream{}, false
	}
	parsed, err := url.Parse(raw)
	switch {
	case err != nil || parsed.Hostname() == "":
		p.addf(line, path, "is no URL such as https://api.example.com")
		return Upstream{}, false
	case !validHost(parsed.Hostname()):
		p.addf(line, path, "%q is no host name: one name or address, an international name in its xn-- form", parsed.Hostname())
	case parsed.Scheme != "https" && parsed.Scheme != "http":
		p.addf(line, path, "needs https:// (or http:// for a local server)")
	case parsed.User != nil || parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "":
		p.addf(line, path, "must have no user, query or fragment: put credentials into headers.set")
	}
	u.URL = parsed
	if u.Dialect == "auto" {
		u.Dialect = guessDialect(name, strings.TrimSuffix(strings.ToLower(parsed.Hostname()), "."))
	}
	return u, true
}

// timeouts are those of one upstream, or the defaults for a name that none has.
func (p *parser) timeouts(name string) Timeouts {
	at := func(path string) Duration { return duration(p.upstreamValue(name, "timeouts."+path).text) }
	return Timeouts{
		Connect: at("connect"), TLSHandshake: at("tls_handshake"), RequestWrite: at("request_write"),
		ResponseHeader: at("response_header"), FirstToken: at("first_token"), Idle: at("idle"), Total: at("total"),
	}
}

// buffer is that of one upstream, or the default for a name that none has.
func (p *parser) buffer(name string) Buffer {
	at := func(path string) string { return p.upstreamValue(name, "buffer."+path).text }
	return Buffer{size(at("stream_limit")), at("policy"), size(at("spool_limit")), duration(at("stall_timeout"))}
}

func (p *parser) retry(name string) Retry {
	at := func(path string) value { return p.upstreamValue(name, "retry."+path) }
	r := Retry{
		MaxAttempts: number(at("max_attempts").text), Budget: float(at("budget").text), Resets: at("resets").text == "true",
		BaseDelay: duration(at("base_delay").text), MaxDelay: duration(at("max_delay").text), ReplayBody: size(at("replay_body").text),
		Hedge: at("hedge").text == "true", HedgeBudget: float(at("hedge_budget").text),
	}
	for _, s := range at("statuses").list {
		r.Statuses = append(r.Statuses, number(s))
	}
	return r
}

// leastMemory is what a few streams need.
const leastMemory = 4 << 20

// memory is limits.memory, 0 for auto.
func (p *parser) memory() Size {
	const path = "limits.memory"
	v := p.get(topKeys, path, path)
	if v.text == "auto" {
		return 0
	}
	n := size(v.text)
	if n < leastMemory {
		p.addf(v.line, path, "%v is less than %v, with which no stream gets far", n, Size(leastMemory))
	}
	return n
}

func guessDialect(name, host string) string {
	switch {
	case name == "anthropic", host == "api.anthropic.com":
		return "anthropic"
	case name == "gemini", host == "generativelanguage.googleapis.com":
		return "gemini"
	}
	return "openai"
}

// get returns the value of a key, or its default.
func (p *parser) get(keys []key, path, full string) value {
	if v, ok := p.values[full]; ok {
		return v
	}
	k, _ := find(keys, path)
	v := value{text: k.def}
	switch k.kind {
	case kList, kInts:
		inner := strings.Trim(k.def, "[]")
		v = value{list: []string{}}
		if inner != "" {
			v.list = strings.Split(inner, ", ")
		}
	case kRules:
		v = value{rules: []ClassRule{}}
	case kEndpoints:
		v = value{endpoints: []Endpoint{}}
	case kMap, kShares, kWeights:
		v = value{dict: map[string]string{}}
	}
	return v
}

// upstreamValue looks at the upstream's own key, then at defaults.
func (p *parser) upstreamValue(name, path string) value {
	if v, ok := p.values[join(join("upstreams", name), path)]; ok {
		return v
	}
	if v, ok := p.values[join("defaults", path)]; ok {
		return v
	}
	return p.get(upstreamKeys, path, path+" ") // no file has this: the default
}

// origin is the line and full key that gave an upstream's setting its value.
func (p *parser) origin(name, path string) (int, string) {
	own := join(join("upstreams", name), path)
	if v, ok := p.values[own]; ok {
		return v.line, own
	}
	if v, ok := p.values[join("defaults", path)]; ok {
		return v.line, join("defaults", path)
	}
	return p.values[join("upstreams", name)].line, own
}

// The texts below were checked when they were read.

func duration(s string) Duration { d, _ := parseDuration(s); return d }
func size(s string) Size         { n, _ := parseSize(s); return n }
func number(s string) int        { n, _ := strconv.Atoi(s); return n }
func float(s string) float64     { f, _ := strconv.ParseFloat(s, 64); return f }

func lower(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strings.TrimSuffix(strings.ToLower(s), ".")
	}
	return out
}
