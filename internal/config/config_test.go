// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

func noEnv(string) (string, bool) { return "", false }

func env(kv ...string) Env {
	return func(name string) (string, bool) {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == name {
				return kv[i+1], true
			}
		}
		return "", false
	}
}

func TestProblems(t *testing.T) {
	tests := []struct{ name, file, want string }{
		{"unknown key", "listn: {}\n", "f:1: listn: unknown key: did you mean listen?"},
		{"unknown key below", "listen:\n  adress: x\n", "f:2: listen.adress: unknown key: did you mean address?"},
		{"unknown key far", "frobnicate: 1\n", "f:1: frobnicate: unknown key: `warmwire config default` lists all"},
		{"upstream's key at the top", "timeouts: {idle: 1m}\n", "f:1: timeouts: unknown key"},
		{"unknown upstream key", "upstreams:\n  openai:\n    timeout: 1s\n", "f:3: upstreams.openai.timeout: unknown key: did you mean timeouts?"},
		{"later protocol", "defaults: {protocols: [h4]}\n", `f:1: defaults.protocols: "h4" is not known here: use h2, http/1.1, h3`},
		{"only over UDP", "defaults: {protocols: [h3]}\n", `f:1: defaults.protocols: h3 needs h2 or http/1.1 beside it`},
		{"no protocol", "defaults: {protocols: []}\n", "f:1: defaults.protocols: needs at least one of h2, http/1.1"},
		{"duration without unit", "drain: {wait: 5}\n", `f:1: drain.wait: "5" is no duration: write 250ms, 30s or 5m`},
		{"negative duration", "drain: {wait: -5s}\n", `f:1: drain.wait: "-5s" is negative: 0s means none`},
		{"short limit of tunnels", "forward: {idle_timeout: 20ms}\n", "f:1: forward.idle_timeout: 20ms is below 1s; 0s means no limit"},
		{"size", "limits: {header: big}\n", `f:1: limits.header: "big" is no size: write 64KiB, 1MiB or a number of bytes`},
		{"no memory", "limits: {memory: 1MiB}\n", "f:1: limits.memory: 1MiB is less than 4MiB, with which no stream gets far"},
		{"memory that is none", "limits: {memory: lots}\n", `f:1: limits.memory: "lots" is no size: write 64KiB, 1MiB or a number of bytes`},
		{"a stream larger than all", "limits: {memory: 8MiB}\ndefaults: {buffer: {stream_limit: 9MiB}}\n", "f:2: defaults.buffer.stream_limit: 9MiB is more than limits.memory (8MiB): lower it, or raise limits.memory"},
		{"a stream too small", "defaults: {buffer: {stream_limit: 1KiB}}\n", "f:1: defaults.buffer.stream_limit: 1KiB is outside 16KiB to 1GiB"},
		{"a policy", "defaults: {buffer: {policy: drop}}\n", `f:1: defaults.buffer.policy: "drop" is not known here: use pause, spool`},
		{"a spool without a file", "defaults: {buffer: {policy: spool, spool_limit: 1MiB}}\n", "f:1: defaults.buffer.spool_limit: 1MiB is not more than buffer.stream_limit (1MiB), which is kept in memory: raise it, or leave the policy at pause"},
		{"attempts", "defaults: {retry: {max_attempts: 11}}\n", "f:1: defaults.retry.max_attempts: 11 is outside 1 to 10"},
		{"a share", "defaults: {retry: {budget: 1.5}}\n", "f:1: defaults.retry.budget: 1.5 is outside 0 to 1"},
		{"a status of success", "defaults: {retry: {statuses: [200]}}\n", "f:1: defaults.retry.statuses: 200 is no status of an error, 400 to 599"},
		{"a status that is none", "defaults: {retry: {statuses: [busy]}}\n", `f:1: defaults.retry.statuses: "busy" is no whole number from 0`},
		{"pauses the wrong way round", "defaults: {retry: {base_delay: 9s}}\n", "f:1: defaults.retry.base_delay: 9s is not between 0s and retry.max_delay (5s)"},
		{"a hedge without a budget", "defaults: {retry: {hedge: true, hedge_budget: 0}}\n", "f:1: defaults.retry.hedge_budget: 0 leaves nothing for retry.hedge: raise it, or set retry.hedge to false"},
		{"rules that are none", "defaults: {classes: batch}\n", "f:1: defaults.classes: needs a list: [{path: /v1/batches*, class: batch}]"},
		{"a rule without a class", "defaults:\n  classes:\n    - {path: /v1/x}\n", "f:3: defaults.classes: a class is one of interactive, default, batch"},
		{"a rule with more", "defaults: {classes: [{path: /v1/x, class: batch, model: m}]}\n", "f:1: defaults.classes: each needs one path and one class, and nothing else"},
		{"a rule that is none", "defaults: {classes: [/v1/x]}\n", "f:1: defaults.classes: each needs a path and a class"},
		{"a path in the middle", "defaults: {classes: [{path: /v1/*/x, class: batch}]}\n", "f:1: defaults.classes: a path begins with / and may end with *"},
		{"a floor above the limit", "defaults: {limits: {concurrency: 5, adaptive: true, floor: 6}}\n", "f:1: defaults.limits.floor: 6 is more than limits.concurrency (5)"},
		{"no time to wait", "defaults: {limits: {queue_timeout: 0s}}\n", "f:1: defaults.limits.queue_timeout: needs a time above 0s"},
		{"a limit beyond sense", "defaults: {limits: {concurrency: 1000000}}\n", "f:1: defaults.limits.concurrency: 1000000 is outside 0 to 100000"},
		{"no list of endpoints", "upstreams: {a: {endpoints: {url: 'https://a.test'}}}\n", "f:1: upstreams.a.endpoints: needs a list"},
		{"an endpoint with a path", "upstreams: {a: {endpoints: [{url: 'https://a.test/v1'}]}}\n", "f:1: upstreams.a.endpoints: an endpoint's url has a scheme and a host alone"},
		{"an endpoint with more", "upstreams: {a: {endpoints: [{url: 'https://a.test', wieght: 2}]}}\n", "f:1: upstreams.a.endpoints: each needs a url, and may have a weight and a name"},
		{"an endpoint without a url", "upstreams: {a: {endpoints: [{weight: 2}]}}\n", "f:1: upstreams.a.endpoints: each needs a url"},
		{"an endpoint of another kind", "upstreams: {a: {endpoints: [{url: 'ftp://a.test'}]}}\n", "f:1: upstreams.a.endpoints: an endpoint's url needs https://"},
		{"an endpoint twice", "upstreams: {a: {endpoints: [{url: 'https://a.test'}, {url: 'https://A.test:443', name: b}]}}\n", "f:1: upstreams.a.endpoints: https://a.test:443 stands twice"},
		{"a name twice", "upstreams: {a: {endpoints: [{url: 'https://a.test', name: x}, {url: 'https://b.test', name: x}]}}\n", "f:1: upstreams.a.endpoints: two endpoints are named x"},
		{"no weight", "upstreams: {a: {endpoints: [{url: 'https://a.test', weight: 0}]}}\n", "f:1: upstreams.a.endpoints: \"0\" is no weight, above 0 to 1000: to take an endpoint out use routing.drain"},
		{"a weight of another", "upstreams: {a: {endpoints: [{url: 'https://a.test'}], routing: {weights: {b.test: 2}}}}\n", "f:1: upstreams.a.routing.weights: there is no endpoint \"b.test\""},
		{"a negative weight", "upstreams: {a: {endpoints: [{url: 'https://a.test'}], routing: {weights: {a.test: -2}}}}\n", "f:1: upstreams.a.routing.weights: a.test: \"-2\" is no weight"},
		{"all drained", "upstreams: {a: {endpoints: [{url: 'https://a.test'}], routing: {drain: [a.test]}}}\n", "f:1: upstreams.a.routing.drain: drains all endpoints: leave one"},
		{"another drained", "upstreams: {a: {endpoints: [{url: 'https://a.test'}, {url: 'https://b.test'}], routing: {drain: [c.test]}}}\n", "f:1: upstreams.a.routing.drain: there is no endpoint \"c.test\""},
		{"weights for all upstreams", "defaults: {routing: {drain: [a.test]}}\n", "f:1: defaults.routing.drain: belongs to one upstream"},
		{"a bound without room", "defaults: {routing: {affinity_bound: 0.5}}\n", "f:1: defaults.routing.affinity_bound: 0.5 is outside 1 to 100"},
		{"an ejection without end", "defaults: {routing: {eject_time: 1h}}\n", "f:1: defaults.routing.eject_time: 1h is not between 0s and routing.eject_max_time (5m)"},
		{"slow, but not slow", "defaults: {routing: {eject_slow: 1}}\n", "f:1: defaults.routing.eject_slow: 1 is outside 1.5 to 1000"},
		{"a path from nowhere", "defaults: {routing: {load_path: metrics}}\n", "f:1: defaults.routing.load_path: a path begins with /"},
		{"all the time", "defaults: {routing: {load_interval: 1ms}}\n", "f:1: defaults.routing.load_interval: 1ms is less than 100ms"},
		{"no field", "defaults: {routing: {affinity: 'a b'}}\n", "f:1: defaults.routing.affinity: \"a b\" is no field name"},
		{"too little to come back to", "defaults: {reattach: {wait: 1m, limit: 1KiB}}\n", "f:1: defaults.reattach.limit: 1KiB is less than 128KiB"},
		{"nowhere to spool", "spool_dir: none\ndefaults: {reattach: {wait: 1m}}\n", "f:1: spool_dir: none leaves no place for buffer.policy spool or reattach of upstream anthropic: name a folder"},
		{"comments in a hurry", "defaults: {heartbeat: {sse_comments: 10ms}}\n", "f:1: defaults.heartbeat.sse_comments: 10ms is less than 1s"},
		{"size out of range", "limits: {header: 1KiB}\n", "f:1: limits.header: 1KiB is outside 4KiB to 1MiB"},
		{"boolean", "listen: {via: yes}\n", `f:1: listen.via: "yes" is neither true nor false`},
		{"integer", "limits: {procs: 0}\n", `f:1: limits.procs: "0" is no whole number from 1`},
		{"list", "forward: {deny: a}\n", "f:1: forward.deny: needs a list: [a, b]"},
		{"section", "listen: 1\n", "f:1: listen: this is a section: indent its keys below it"},
		{"twice", "drain: {wait: 1s}\ndrain: {wait: 2s}\n", "f:2: drain: stands twice: first in line 1"},
		{"alias", "defaults: &d {error_event: true}\n", "f:1: defaults: anchors and aliases are not used here"},
		{"second document", "drain: {}\n---\ndrain: {}\n", "a second document"},
		{"no YAML", "a: [\n", "f: not YAML: "},
		{"tab", "a:\n\tb: 1\n", "f: not YAML: "},
		{"sequence", "- a\n", "f:1: this is a section"},
		{"missing variable", "listen:\n  token: x${NOPE}\n", "f:2: listen.token: the environment variable NOPE is not set"},
		{"open variable", "listen: {token: '${NOPE'}\n", "f:1: listen.token: ${ without }: write $$ for a dollar"},
		{"upstream without url", "upstreams:\n  mine: {}\n", `f:2: upstreams.mine.url: is needed: "mine" is no built-in upstream`},
		{"upstream's name", "upstreams:\n  My/API: {url: 'https://a'}\n", "f:2: upstreams.My/API: a name has lower-case letters"},
		{"reserved name", "upstreams:\n  tunnel: {url: 'https://a'}\n", "f:2: upstreams.tunnel: is a name that metrics use"},
		{"url with credentials", "upstreams:\n  mine: {url: 'https://u:p@a.test'}\n", "f:2: upstreams.mine.url: must have no user, query or fragment"},
		{"url of another scheme", "upstreams:\n  mine: {url: 'ftp://a.test'}\n", "f:2: upstreams.mine.url: needs https://"},
		{"url under defaults", "defaults: {url: 'https://a'}\n", "f:1: defaults.url: belongs to one upstream"},
		{"same host", "upstreams:\n  mine: {url: 'https://api.openai.com'}\n", "f:2: upstreams.mine.url: has the same host as upstream openai"},
		{"same host with its port", "upstreams:\n  mine: {url: 'https://API.openai.com.:443'}\n", "f:2: upstreams.mine.url: has the same host as upstream openai"},
		{"no policy", "forward: {default: }\n", `f:1: forward.default: "" is not known here: use tunnel, deny`},
		{"empty protocol", "defaults: {protocols: ['']}\n", `"" is not known here`},
		{"bad prefix", "forward: {deny: ['10.0.0.0/99']}\n", `f:1: forward.deny: "10.0.0.0/99" is no name, .suffix, address or prefix`},
		{"URL in no_proxy", "no_proxy: ['http://x/']\n", `f:1: no_proxy: "http://x/" is no name`},
		{"broken second document", "drain: {}\n---\na: [", "a second document"},
		{"key for all providers", "defaults: {headers: {set: {Authorization: x}}}\n", "f:1: defaults.headers.set: belongs to one upstream"},
		{"same field twice", "upstreams:\n  openai:\n    headers: {set: {A: x, a: y}}\n", "upstreams.openai.headers.set.a: stands twice"},
		{"anchor in a list", "no_proxy: [&a x]\n", "anchors and aliases are not used here"},
		{"tag", "log: {level: !foo info}\n", "tags such as !foo are not used here"},
		{"port out of range", "listen: {address: '127.0.0.1:99999'}\n", "is neither host:port nor unix:/path"},
		{"same address by another name", "admin: {address: 'localhost:8484'}\n", "is the same as listen.address"},
		{"a key that is short", "tls: {session_key: YWJj}\n", "tls.session_key: is not 32 bytes in base64"},
		{"trust in nobody", "defaults: {tls: {ca_only: true}}\n", "tls.ca_only without tls.ca_file trusts nobody"},
		{"a report of nothing", "defaults: {tls: {pins_report_only: true}}\n", "tls.pins_report_only without tls.pins does nothing"},
		{"folder for a file", "defaults: {tls: {ca_file: /etc}}\n", "/etc is a folder"},
		{"false stall", "defaults:\n  timeouts: {request_write: 30s, total: 10s}\n",
			"f:2: defaults.timeouts.total: 10s is shorter than defaults.timeouts.request_write (30s), which can then never act"},
		{"connect over total", "defaults:\n  timeouts: {connect: 20s, total: 10s}\n", "shorter than defaults.timeouts.connect (20s)"},
		{"open listener", "listen: {address: '0.0.0.0:8484'}\n",
			`f:1: listen.address: "0.0.0.0:8484" is reachable from outside this host: set listen.token, or listen on 127.0.0.1`},
		{"no address", "listen: {address: '8484'}\n", `f:1: listen.address: "8484" is neither host:port nor unix:/path`},
		{"both forms", "listen: {address: '127.0.0.1:1', addresses: ['127.0.0.1:2']}\n", "stands beside listen.addresses"},
		{"same address", "admin: {address: '127.0.0.1:8484'}\n", "f:1: admin.address: is the same as listen.address"},
		{"framing field", "upstreams:\n  openai:\n    headers: {set: {content-length: '1'}}\n", "content-length belongs to the connection"},
		{"field value", "upstreams:\n  openai:\n    headers: {set: {X: \"a\\nb\"}}\n", "the value of X has bytes that no field may have"},
		{"half a client certificate", "defaults: {tls: {client_cert: /etc/hostname}}\n", "tls.client_cert and tls.client_key go together"},
		{"missing file", "defaults: {tls: {ca_file: /nonexistent/ca.pem}}\n", "no such file"},
		{"sample", "log: {access: {sample: 2}}\n", "f:1: log.access.sample: 2 is outside 0 to 1"},
		{"share of a status", "log: {access: {statuses: {4xx: 2}}}\n", `f:1: log.access.statuses: 4xx: "2" is no number from 0 to 1`},
		{"share of no number", "log: {access: {statuses: {4xx: all}}}\n", `f:1: log.access.statuses: 4xx: "all" is no number from 0 to 1`},
		{"class of no status", "log: {access: {statuses: {404: 1}}}\n", `f:1: log.access.statuses: "404" is not known here: use 1xx, 2xx, 3xx, 4xx, 5xx`},
		{"shares as a list", "log: {access: {statuses: [4xx]}}\n", "f:1: log.access.statuses: needs names with values"},
		{"summary too often", "log: {access: {summary: 10ms}}\n", "f:1: log.access.summary: 10ms is less than 1s"},
		{"binary in the log", "log: {access: {format: msgpack}}\n", "f:1: log.access.format: msgpack is not for reading beside the log: set log.access.file"},
		{"file in a tilde", "log: {access: {file: ~/access.log}}\n", "f:1: log.access.file: ~ is no folder here: write ${HOME}"},
		{"origin with a path", "listen: {allow_origins: ['https://a.test/x']}\n", `"https://a.test/x" is no origin`},
		{"address twice", "listen: {addresses: ['127.0.0.1:1', 'localhost:1']}\n", `f:1: listen.addresses: "127.0.0.1:1" and "localhost:1" are the same: remove one`},
		{"no admin address", "admin: {address: }\n", `f:1: admin.address: "" is neither host:port nor unix:/path`},
		{"no token file", "admin: {token_file: }\n", "f:1: admin.token_file: needs a path, auto or none"},
		{"tilde", "state_dir: ~/warm\n", "f:1: state_dir: ~ is no folder here: write ${HOME}"},
		{"origin with an empty query", "listen: {allow_origins: ['https://a.test?']}\n", `"https://a.test?" is no origin`},
		{"origin with an empty fragment", "listen: {allow_origins: ['https://a.test#']}\n", `"https://a.test#" is no origin`},
		{"protocol twice", "defaults: {protocols: [h2, h2]}\n", "f:1: defaults.protocols: names one twice"},
		{"upstream twice", "upstreams:\n  openai: {}\n  openai: {}\n", "f:3: upstreams.openai: stands twice: first in line 2"},
		{"local port out of range", "upstreams:\n  mine: {url: 'http://127.0.0.1:99999'}\n", "f:2: upstreams.mine.url: port 99999 is outside 1 to 65535"},
		{"local port zero", "upstreams:\n  mine: {url: 'http://127.0.0.1:0'}\n", "f:2: upstreams.mine.url: port 0 is outside 1 to 65535"},
		{"wildcard host", "upstreams:\n  mine: {url: 'https://*.a.test'}\n", `f:2: upstreams.mine.url: "*.a.test" is no host name`},
		{"international host", "upstreams:\n  mine: {url: 'https://bücher.test'}\n", "an international name in its xn-- form"},
		{"parent's port", "parent_proxy: http://a:99999\n", "f:1: parent_proxy: needs http://host:port"},
		{"anchor on a key", "listen: {&a via: true}\n", "f:1: listen: keys are plain names"},
		{"anchor on an upstream", "upstreams: {&a openai: {}}\n", "f:1: upstreams: keys are plain names"},
		{"mapping for an upstream", "upstreams: {? {a: b} : {}}\n", "f:1: upstreams: keys are plain names"},
		{"anchor on a field", "upstreams: {openai: {headers: {set: {&a X: y}}}}\n", "f:1: upstreams.openai.headers.set: names are plain"},
		{"empty variable for a token", "listen: {token: '${EMPTY}'}\n", "f:1: listen.token: the environment variable EMPTY is empty: set it, or remove this key"},
		{"empty variable for a key", "upstreams:\n  openai:\n    headers: {set: {Authorization: 'Bearer ${EMPTY}'}}\n",
			"f:3: upstreams.openai.headers.set.Authorization: the environment variable EMPTY is empty"},
		{"pattern to intercept", "intercept: {hosts: ['*.a.test']}\n", `f:1: intercept.hosts: "*.a.test" is no host: one name or address without a port`},
		{"port to intercept", "intercept: {hosts: ['a.test:443']}\n", `f:1: intercept.hosts: "a.test:443" is no host`},
		{"host to intercept twice", "intercept: {hosts: [a.test, A.test.]}\n", `f:1: intercept.hosts: "a.test" stands twice`},
		{"no upstream to intercept", "intercept: {hosts: [upstreams]}\n", "f:1: intercept.hosts: leaves no host"},
		{"all blind", "intercept: {hosts: [a.test], blind: [a.test]}\n", "f:1: intercept.hosts: leaves no host"},
		{"blind upstreams", "intercept: {hosts: [a.test], blind: [upstreams]}\n", "f:1: intercept.blind: upstreams has a meaning in intercept.hosts only"},
		{"parent", "parent_proxy: socks5://a:1\n", "f:1: parent_proxy: needs http://host:port"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := Parse("f", []byte(tt.file), env("EMPTY", ""))
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse = %v\nwant %q in it", err, tt.want)
			}
		})
	}
}

func TestAllProblemsAreReportedInTheOrderOfLines(t *testing.T) {
	_, _, err := Parse("f", []byte("drain: {wait: x}\nnope: 1\nlog: {level: loud}\n"), noEnv)
	want := "invalid configuration:\n  f:1: drain.wait: \"x\" is no duration: write 250ms, 30s or 5m\n" +
		"  f:2: nope: unknown key: `warmwire config default` lists all\n" +
		"  f:3: log.level: \"loud\" is not known here: use debug, info, warn, error"
	if err == nil || err.Error() != want {
		t.Errorf("Parse = %v\nwant %v", err, want)
	}
}

func TestWhatConcernsEveryUpstreamIsSaidOnce(t *testing.T) {
	_, _, err := Parse("f", []byte("defaults: {timeouts: {request_write: 30s, total: 10s}}\n"), noEnv)
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("Parse = %v", err)
	}
	_, warnings, err := Parse("f", []byte("defaults: {timeouts: {idle: 5s}}\n"), noEnv)
	if err != nil || len(warnings) != 1 {
		t.Errorf("Parse = %q, %v", warnings, err)
	}
}

func TestWarnings(t *testing.T) {
	tests := []struct{ name, file, want string }{
		{"clear text", "upstreams:\n  mine: {url: 'http://a.test'}\n", "f:2: upstreams.mine.url: http:// sends keys and prompts in clear"},
		{"connect", "defaults: {timeouts: {connect: 200ms}}\n", "RFC 8305"},
		{"idle", "defaults: {timeouts: {idle: 5s}}\n", "5s is a pause that a model may make"},
		{"header", "defaults: {timeouts: {response_header: 1m}}\n", "shorter than the 10m"},
		{"total", "defaults: {timeouts: {total: 1h}}\n", "healthy streams are cut after 1h"},
		{"total below defaults", "defaults: {timeouts: {total: 10s}}\n", "10s is shorter than the defaults of timeouts.request_write (30s), timeouts.response_header (30m)"},
		{"routing of nothing", "upstreams: {openai: {routing: {load_path: /metrics}}}\n", "does nothing without endpoints"},
		{"endpoints in clear", "upstreams: {a: {url: 'https://x.test', endpoints: [{url: 'http://a.test'}]}}\n", "http:// sends keys and prompts in clear"},
		{"a floor of nothing", "defaults: {limits: {concurrency: 5, floor: 2}}\n", "does nothing without limits.adaptive"},
		{"a queue of nothing", "defaults: {limits: {queue: 5}}\n", "does nothing without limits.concurrency, limits.adaptive or limits.pace"},
		{"a rule behind another", "defaults: {classes: [{path: /v1/*, class: batch}, {path: /v1/x, class: default}]}\n", "/v1/x stands behind /v1/*, which takes all its paths"},
		{"drain", "drain: {wait: 10s}\n", "terminationGracePeriodSeconds"},
		{"no drain", "drain: {timeout: 0s}\n", "0s cuts every stream at once"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, warnings, err := Parse("f", []byte(tt.file), noEnv)
			if err != nil || !strings.Contains(strings.Join(warnings, "\n"), tt.want) {
				t.Errorf("Parse = %v, %v; want %q", warnings, err, tt.want)
			}
		})
	}
	if _, warnings, err := Parse("f", nil, noEnv); err != nil || len(warnings) > 0 {
		t.Errorf("the default warns: %v, %v", warnings, err)
	}
}

func TestResolution(t *testing.T) {
	file := `
defaults:
  timeouts: {idle: 1m}
  error_event: true
upstreams:
  openai:
    headers: {set: {Authorization: "Bearer ${KEY}", X: "$$5 $x"}}
    timeouts: {idle: 2m}
  mine: {url: "https://llm.example:8443/base/", protocols: [http/1.1], dialect: none}
  ollama: {disabled: true}
  anthropic: {disabled: true}
  eu: {url: "https://API.Anthropic.com."} # known by its host
`
	cfg, _, err := Parse("f", []byte(file), env("KEY", "a: [b"))
	if err != nil {
		t.Fatal(err)
	}
	by := make(map[string]Upstream)
	for _, u := range cfg.Upstreams {
		by[u.Name] = u
	}
	o, m, g := by["openai"], by["mine"], by["gemini"]
	if o.Headers["Authorization"] != "Bearer a: [b" || o.Headers["X"] != "$5 $x" {
		t.Errorf("headers %q", o.Headers)
	}
	if time.Duration(o.Timeouts.Idle) != 2*time.Minute || time.Duration(m.Timeouts.Idle) != time.Minute || !m.ErrorEvent {
		t.Errorf("idle %v and %v, error_event %v", o.Timeouts.Idle, m.Timeouts.Idle, m.ErrorEvent)
	}
	if m.URL.String() != "https://llm.example:8443/base/" || m.Builtin || !g.Builtin || m.Dialect != "none" || g.Dialect != "gemini" {
		t.Errorf("mine %+v, gemini %+v", m, g)
	}
	if eu := by["eu"]; eu.Dialect != "anthropic" {
		t.Errorf("eu %+v", eu)
	}
	if _, there := by["ollama"]; there || len(by) != len(builtins) {
		t.Errorf("%d upstreams, ollama %v", len(by), there)
	}
}

func TestFind(t *testing.T) {
	tests := []struct {
		name, flag string
		env        Env
		exists     string
		want       string
	}{
		{"flag", "a", env("WARMWIRE_CONFIG", "b"), "", "a"},
		{"variable", "", env("WARMWIRE_CONFIG", "b", "HOME", "/h"), "/h/.config/warmwire/warmwire.yaml", "b"},
		{"XDG", "", env("XDG_CONFIG_HOME", "/x", "HOME", "/h"), "/x/warmwire/warmwire.yaml", "/x/warmwire/warmwire.yaml"},
		{"home", "", env("HOME", "/h"), "/h/.config/warmwire/warmwire.yaml", "/h/.config/warmwire/warmwire.yaml"},
		{"system", "", env("HOME", "/h"), "/etc/warmwire/warmwire.yaml", "/etc/warmwire/warmwire.yaml"},
		{"none", "", env("HOME", "/h"), "warmwire.yaml", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, _ := Find(tt.flag, tt.env, func(p string) bool { return p == tt.exists }); got != tt.want {
				t.Errorf("Find = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDefaultFileIsTheDefault(t *testing.T) {
	want, _, err := Parse("", nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := Parse("default", Default(), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Upstreams {
		got.Upstreams[i].Builtin = true // the file names them
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the default file differs from no file:\n%s", diff)
	}
}

func TestShowHidesSecretsAndLoads(t *testing.T) {
	file := "listen: {token: s3cret}\nparent_proxy: http://u:s3cret@p:1\nforward: {deny: ['a$$b']}\nupstreams:\n  openai: {headers: {set: {Authorization: s3cret}}}\n"
	cfg, _, err := Parse("f", []byte(file), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	shown := cfg.Show()
	if strings.Contains(string(shown), "s3cret") {
		t.Errorf("a secret is shown:\n%s", shown)
	}
	if _, _, err := Parse("shown", shown, noEnv); err != nil {
		t.Errorf("what is shown does not load: %v\n%s", err, shown)
	}
}

func TestSchemaNamesEveryKey(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	lookup := func(root any, path string) bool {
		for name := range strings.SplitSeq(path, ".") {
			m, ok := root.(map[string]any)["properties"].(map[string]any)[name].(map[string]any)
			if !ok {
				return false
			}
			root = m
		}
		return true
	}
	for _, k := range topKeys {
		if !lookup(schema, k.path) || k.doc == "" {
			t.Errorf("%s is not in the schema, or not documented", k.path)
		}
	}
	ups := schema["properties"].(map[string]any)["upstreams"].(map[string]any)["additionalProperties"]
	for _, k := range upstreamKeys {
		if !lookup(ups, k.path) {
			t.Errorf("upstreams.*.%s is not in the schema", k.path)
		}
		if k.doc == "" {
			t.Errorf("%s is not documented", k.path)
		}
	}
}

func TestReferenceIsCurrent(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "configuration.md")
	if *update {
		if err := os.WriteFile(path, Markdown(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != string(Markdown()) {
		t.Errorf("docs/configuration.md is not what the keys say (%v): go test ./internal/config -update", err)
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]Size{"0": 0, "64KiB": 64 << 10, "1MiB": 1 << 20, "7": 7, "2 GiB": 2 << 30} {
		if got, err := parseSize(in); got != want || err != nil {
			t.Errorf("parseSize(%q) = %d, %v", in, got, err)
		}
	}
	for d, want := range map[Duration]string{0: "0s", Duration(15 * time.Minute): "15m", Duration(2 * time.Hour): "2h", Duration(90 * time.Second): "1m30s",
		Duration(250 * time.Millisecond): "250ms", Duration(10*time.Minute + 5*time.Second): "10m5s"} {
		if got := d.String(); got != want {
			t.Errorf("%d = %q, want %q", int64(d), got, want)
		}
	}
}

// FuzzParse checks that no file panics, and that what loads can be shown.
func FuzzParse(f *testing.F) {
	f.Add(string(Default()))
	f.Add("upstreams:\n  a: {url: 'https://a', headers: {set: {X: '${A}'}}}\n")
	f.Add("a: &x [*x]\n")
	f.Fuzz(func(t *testing.T, file string) {
		cfg, _, err := Parse("f", []byte(file), env("A", "b"))
		if (cfg == nil) == (err == nil) {
			t.Fatalf("cfg %v, err %v", cfg, err)
		}
		if cfg != nil {
			if _, _, err := Parse("shown", cfg.Show(), noEnv); err != nil {
				t.Errorf("what is shown does not load: %v", err)
			}
		} else if !errors.Is(err, ErrInvalid) {
			t.Errorf("error of another kind: %v", err)
		}
	})
}
