// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// leaves visits the settings in v with their key: Listen.AllowHosts is
// listen.allow_hosts.
func leaves(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := keyName(f.Name)
		switch {
		case !f.IsExported():
		case f.Type.Kind() == reflect.Struct:
			leaves(v.Field(i), join(path, name), visit)
		default:
			visit(join(path, name), v.Field(i))
		}
	}
}

func keyName(field string) string {
	for from, to := range map[string]string{"CAFile": "ca_file", "AllowUIDs": "allow_uids", "TLSHandshake": "tls_handshake", "TLS": "tls",
		"CAOnly": "ca_only", "SSEComments": "sse_comments", "WebSocketHTTP2": "websocket_http2", "ECH": "ech",
		"OTLP": "otlp", "ExportHeaders": "headers", "DNS": "dns", "JWT": "jwt", "KeysURL": "keys_url", "MinTTL": "min_ttl", "URL": "url", "Headers": "headers.set", "MaxH1Connections": "max_h1_connections"} {
		if field == from {
			return to
		}
	}
	var b strings.Builder
	for i, r := range field {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

func paths(keys []key) []string {
	var out []string
	for _, k := range keys {
		out = append(out, k.path)
	}
	slices.Sort(out)
	return out
}

func TestEveryFieldHasItsKey(t *testing.T) {
	top := []string{"listen.address"} // merged into Addresses
	leaves(reflect.ValueOf(Config{}), "", func(path string, _ reflect.Value) {
		if path != "upstreams" && path != "tenants" && path != "roles" && !strings.HasPrefix(path, "default_timeouts.") && !strings.HasPrefix(path, "default_buffer.") {
			top = append(top, path)
		}
	})
	up := []string{"disabled"} // has no Upstream
	leaves(reflect.ValueOf(Upstream{}), "", func(path string, _ reflect.Value) {
		if path != "name" && path != "builtin" {
			up = append(up, path)
		}
	})
	slices.Sort(top)
	slices.Sort(up)
	if diff := cmp.Diff(paths(topKeys), top); diff != "" {
		t.Errorf("keys (-) and fields of Config (+):\n%s", diff)
	}
	if diff := cmp.Diff(paths(upstreamKeys), up); diff != "" {
		t.Errorf("keys (-) and fields of Upstream (+):\n%s", diff)
	}
}

// full sets every key to something else than its default; %[1]s is a file.
const full = `
listen: {addresses: ['127.0.0.1:1', 'unix:/run/w'], token: s3cret, allow_hosts: [W.test.], allow_origins: ['https://A.test:1'], allow_uids: [7], via: false, server_timing: true}
admin: {address: '127.0.0.1:2', token_file: /run/token}
forward: {default: deny, deny: [.corp.test, 10.0.0.0/8], idle_timeout: 3h}
intercept: {hosts: [A.test., upstreams], blind: [B.test]}
parent_proxy: http://u:s3cret@p.test:3128
no_proxy: [a.test]
dns:
  mode: resolvers_only
  resolvers: [quad9, 'tls://dns.corp.test#addr=10.0.0.1']
  bootstrap: [10.0.0.2]
  ca_file: /etc/dns.pem
  stale: 1h
  min_ttl: 1s
  cache_file: none
  system_domains: [.corp.test]
  hosts_file: /etc/other
  listen: '127.0.0.1:5353'
tls: {session_file: none, session_key: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}
state_dir: /srv/w
spool_dir: /srv/spool
limits: {memory: 64MiB, connections: 5, header: 8KiB, body: 1MiB, procs: 1}
log: {level: debug, format: json, access: {sample: 0.5, statuses: {2xx: 0.1, 5xx: 0}, summary: 5s, format: msgpack, file: /srv/log}}
telemetry: {otlp: {endpoint: 'https://otel.test:4318/x', protocol: http/json, headers: {Api-Key: s3cret}, traces: false, metrics: false, sample: 0.5, interval: 2s, timeout: 3s, ca_file: %[1]q, resource: {service.name: gate}}}
drain: {wait: 1s, timeout: 2s, upgrade_timeout: 3s}
jwt: {issuer: 'https://idp.test', audience: [w], secret: s3cret-s3cret-s3cret-s3cret-s3cret, keys_file: %[1]q, keys_url: 'https://idp.test/keys', ca_file: %[1]q, skew: 1s, refresh: 2m}
tenants:
  a:
    tokens: [s3cret-s3cret-s3cret]
    token_hashes: ['sha256:9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08']
    token_files: [%[2]q]
    uids: [1000]
    gids: [50]
    claims: {sub: a}
    roles: [chat]
    priority: batch
    weight: 3
    quota: {requests: 1, output_tokens: 2, streams: 3, upload: 4KiB}
    keys: {openai: s3cret}
roles:
  chat: {upstreams: [openai], methods: [POST], paths: [/v1/**], deny_paths: [/v1/files]}
defaults:
  timeouts: {connect: 1s, tls_handshake: 1s, request_write: 1s, response_header: 11m, first_token: 1s, idle: 1m, total: 1h}
  buffer: {stream_limit: 32KiB, policy: spool, spool_limit: 33MiB, stall_timeout: 11s}
upstreams:
  openai:
    url: https://a.test:1/x
    dialect: none
    protocols: [http/1.1, h3]
    qlog_dir: /srv/q
    headers: {set: {X: s3cret}}
    timeouts: {connect: 2s, tls_handshake: 2s, request_write: 2s, response_header: 12m, first_token: 2s, idle: 2m, total: 2h}
    congestion_control: bbr
    priority: batch
    classes: [{path: /v1/x*, class: interactive}]
    pool: {warm: 2, max_connections: 3, max_h1_connections: 4, max_streams: 5, idle_timeout: 6s, queue_timeout: 7s}
    endpoints: [{url: 'https://b.test:2', weight: 3, name: b}, {url: 'https://c.test'}]
    routing: {algorithm: round_robin, weights: {b: 2.5}, drain: ['c.test'], affinity: X-S, affinity_bound: 2, slow_start: 9s, eject_after: 2, eject_time: 3s,
      eject_max_time: 4s, eject_share: 0.25, eject_slow: 3, load_path: /m, load_interval: 2s, probe_path: /h, probe_interval: 3s}
    limits: {concurrency: 9, adaptive: true, floor: 3, pace: true, queue: 8, queue_timeout: 4s}
    buffer: {stream_limit: 64KiB, policy: spool, spool_limit: 34MiB, stall_timeout: 12s}
    heartbeat: {mode: fixed, min_interval: 6s, max_interval: 7s, timeout: 8s, sse_comments: 20s, search: false}
    resume: true
    reconnect: true
    websocket_http2: false
    reattach: {wait: 1m, limit: 1MiB}
    retry: {max_attempts: 2, budget: 0.1, statuses: [429], resets: true, base_delay: 1s, max_delay: 2s, replay_body: 2MiB, hedge: true, hedge_budget: 0.2}
    error_event: true
    tls: {ca_file: %[1]q, client_cert: %[1]q, client_key: %[1]q, min_version: 1.3, ca_only: true, intermediates_file: %[1]q,
      pins: [sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=], pins_report_only: true, ech: auto}
  ollama: {disabled: true}
`

func loadFull(t *testing.T) *Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "some.pem")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("s3cret-s3cret-one\ns3cret-s3cret-two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := Parse("f", fmt.Appendf(nil, full, file, tokens), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func named(c *Config, name string) Upstream {
	i := slices.IndexFunc(c.Upstreams, func(u Upstream) bool { return u.Name == name })
	return c.Upstreams[i]
}

// TestEveryKeyArrives finds keys that are read and then forgotten, or that land
// in another's field.
func TestEveryKeyArrives(t *testing.T) {
	got := loadFull(t)
	std, _, err := Parse("", nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	differ := func(a, b any) {
		t.Helper()
		byPath := make(map[string]any)
		leaves(reflect.ValueOf(a), "", func(path string, v reflect.Value) { byPath[path] = v.Interface() })
		leaves(reflect.ValueOf(b), "", func(path string, v reflect.Value) {
			if path != "name" && reflect.DeepEqual(byPath[path], v.Interface()) {
				t.Errorf("%s stays %v", path, v)
			}
		})
	}
	differ(*std, *got)
	differ(named(std, "openai"), named(got, "openai"))
	differ(Tenant{Weight: 1}, got.Tenants[0])
	if len(got.Tenants[0].Tokens) != 4 {
		t.Errorf("%d tokens, want one, a hash and two of a file", len(got.Tenants[0].Tokens))
	}
	differ(Role{}, got.Roles[0])
	if g, o := named(got, "gemini").Timeouts, named(got, "openai").Timeouts; g != got.DefaultTimeouts || g == o {
		t.Errorf("timeouts: gemini %v, defaults %v, openai %v", g, got.DefaultTimeouts, o)
	}
	if diff := cmp.Diff(Listen{[]string{"127.0.0.1:1", "unix:/run/w"}, "s3cret", []string{"w.test"}, []string{"https://a.test:1"},
		[]uint32{7}, false, true}, got.Listen); diff != "" {
		t.Errorf("listen:\n%s", diff)
	}
}

// TestWhatIsShownIsWhatApplies loads what Show prints: all but the secrets is as
// it was.
func TestWhatIsShownIsWhatApplies(t *testing.T) {
	for name, file := range map[string]string{
		"default":              "",
		"a built-in replaced":  "upstreams:\n  mine: {url: 'https://api.openai.com'}\n  openai: {disabled: true}\n",
		"limits of defaults":   "defaults: {timeouts: {idle: 1m}}\n",
		"own limits":           "upstreams: {openai: {timeouts: {idle: 1m}}}\n",
		"no admin, no token":   "admin: {address: none, token_file: none}\n",
		"an environment proxy": "parent_proxy: env\n",
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _, err := Parse("f", []byte(file), noEnv)
			if err != nil {
				t.Fatal(err)
			}
			sameAsShown(t, cfg)
		})
	}
	cfg := loadFull(t)
	cfg.Listen.Token, cfg.TLS.SessionKey, cfg.ParentProxy = hidden, hidden, "http://hidden@p.test:3128"
	named(cfg, "openai").Headers["X"] = hidden
	cfg.JWT.Secret, cfg.Tenants[0].Keys["openai"] = hidden, hidden
	cfg.Telemetry.OTLP.ExportHeaders["Api-Key"] = hidden
	cfg.Tenants[0].Tokens, cfg.Tenants[0].TokenFiles = nil, nil
	sameAsShown(t, cfg)
}

func sameAsShown(t *testing.T, cfg *Config) {
	t.Helper()
	again, _, err := Parse("shown", cfg.Show(), noEnv)
	if err != nil {
		t.Fatalf("what is shown does not load: %v", err)
	}
	if diff := cmp.Diff(cfg, again, cmpopts.IgnoreFields(Upstream{}, "Builtin"), cmpopts.IgnoreUnexported(Tenant{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("what is shown differs from what applies:\n%s", diff)
	}
}

func TestMessagesHoldNoSecret(t *testing.T) {
	for _, file := range []string{
		"listen: {via: '${KEY}'}\n", "drain: {wait: '${KEY}'}\n", "limits: {body: '${KEY}'}\n", "limits: {memory: '${KEY}'}\n", "log: {level: '${KEY}'}\n", "log: {access: {statuses: {4xx: '${KEY}'}}}\n",
		"listen: {allow_uids: ['${KEY}']}\n", "defaults: {protocols: ['${KEY}']}\n", "defaults: {classes: [{path: '${KEY}', class: '${KEY}'}]}\n", "defaults: {classes: [{path: /x, class: '${KEY}'}]}\n", "parent_proxy: 'ftp://u:${KEY}@p'\n",
		"no_proxy: ['http://u:s3cret@p:1']\n", "forward: {deny: ['u:s3cret@p']}\n", "listen: {allow_hosts: ['u:s3cret@h']}\n",
		"listen: {allow_origins: ['https://u:s3cret@a.test']}\n", "upstreams: {mine: {url: 'https://u:s3cret@a.test'}}\n",
		"upstreams: {openai: {headers: {set: {X: \"${KEY}\\n\"}}}}\n", "listen: {token: [s3cret]}\n", "tenants: {a: {tokens: ['${KEY}'], roles: [r]}}\n", "tenants: {a: {token_hashes: ['${KEY}']}}\n", "jwt: {secret: '${KEY}', issuer: x}\n",
		"tenants: {a: {uids: [1], roles: [r], keys: {openai: \"${KEY}\\n\"}}}\nroles: {r: {upstreams: [openai]}}\n", "tls: {session_key: '${KEY}'}\n", "telemetry: {otlp: {headers: {X: \"${KEY}\\n\"}}}\n", "telemetry: {otlp: {endpoint: 'https://u:${KEY}@host'}}\n", "telemetry: {otlp: {sample: '${KEY}'}}\n", "listen: {token: 's3cret\n",
	} {
		_, _, err := Parse("f", []byte(file), env("KEY", "s3cret"))
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Parse(%q) = %v", file, err)
		}
	}
}

func TestReportOfNonsenseStaysReadable(t *testing.T) {
	var b strings.Builder
	for i := 0; b.Len() < 64<<10; i++ {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	lines := strings.Count(b.String(), "\n")
	_, _, err := Parse("f", []byte(b.String()), noEnv)
	if err == nil || strings.Count(err.Error(), "\n") != maxProblems+1 || !strings.HasSuffix(err.Error(), fmt.Sprintf("and %d more", lines-maxProblems)) {
		t.Errorf("Parse = %.300v", err)
	}
	_, _, err = Parse("f", []byte(strings.Repeat("é", maxFileBytes/4)+": 1\n"), noEnv)
	if err == nil || len(err.Error()) > 1000 || strings.ContainsRune(err.Error(), '\uFFFD') {
		t.Errorf("Parse = %.300v", err)
	}
}
