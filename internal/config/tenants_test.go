// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTenantProblems(t *testing.T) {
	const role = "roles: {r: {upstreams: ['*']}}\n"
	tests := []struct{ name, file, want string }{
		{"no role", "tenants: {a: {uids: [1]}}\n", "tenants.a.roles: is needed"},
		{"nobody", "tenants: {a: {roles: [r]}}\n" + role, "f:1: tenants.a: nobody is this tenant"},
		{"unknown role", "tenants: {a: {uids: [1], roles: [x]}}\n" + role, `f:1: tenants.a.roles: there is no role "x"`},
		{"a role twice", "tenants: {a: {uids: [1], roles: [r, r]}}\n" + role, "names r twice"},
		{"one token, two tenants", "tenants:\n  a: {tokens: [0123456789abcdef], roles: [r]}\n  b: {tokens: [0123456789abcdef], roles: [r]}\n" + role,
			"f:3: tenants.b.tokens: has the same token as tenant a: a caller is one tenant only"},
		{"a token and its hash", "tenants:\n  a: {tokens: [0123456789abcdef], roles: [r]}\n  b: {token_hashes: ['sha256:9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f'], roles: [r]}\n" + role,
			"tenants.b.token_hashes: has the same token as tenant a"},
		{"one user, two tenants", "tenants: {a: {uids: [1], roles: [r]}, b: {uids: [1], roles: [r]}}\n" + role, "tenants.b.uids: has the same user 1 as tenant a"},
		{"one group, two tenants", "tenants: {a: {gids: [1], roles: [r]}, b: {gids: [1], roles: [r]}}\n" + role, "tenants.b.gids: has the same group 1 as tenant a"},
		{"the same claims", "jwt: {issuer: x, secret: 0123456789abcdef0123456789abcdef}\ntenants: {a: {claims: {sub: x}, roles: [r]}, b: {claims: {sub: x}, roles: [r]}}\n" + role,
			"tenants.b.claims: has the same claims as tenant a"},
		{"a short token", "tenants: {a: {tokens: [short], roles: [r]}}\n" + role, "a token of 5 bytes: 16 to 8192 are needed"},
		{"no hash", "tenants: {a: {token_hashes: ['sha256:00'], roles: [r]}}\n" + role, "is not sha256: and 64 hexadecimal digits"},
		{"no such file", "tenants: {a: {token_files: [/nowhere/at/all], roles: [r]}}\n" + role, "no such file"},
		{"an empty variable", "tenants: {a: {tokens: ['${EMPTY}'], roles: [r]}}\n" + role, "the environment variable EMPTY is empty"},
		{"a name of metrics", "tenants: {none: {uids: [1], roles: [r]}}\n" + role, "is a name that metrics use"},
		{"a bad name", "tenants: {A B: {uids: [1], roles: [r]}}\n" + role, "a name has lower-case letters"},
		{"unknown key", "tenants: {a: {token: x, roles: [r]}}\n" + role, "tenants.a.token: unknown key: did you mean tokens?"},
		{"a class that is none", "tenants: {a: {uids: [1], roles: [r], priority: high}}\n" + role, `"high" is not known here`},
		{"role without upstream", "roles: {r: {methods: [GET]}}\n", "roles.r.upstreams: is needed"},
		{"role for an unknown upstream", "roles: {r: {upstreams: [nope]}}\n", `there is no upstream "nope"`},
		{"role for what is denied to all", "forward: {default: deny}\nroles: {r: {upstreams: [tunnel]}}\n", "allows tunnel, and forward.default denies it"},
		{"paths of tunnels", "roles: {r: {upstreams: [tunnel], paths: [/v1]}}\n", "is tunnel alone, in which nothing can be seen"},
		{"CONNECT", "roles: {r: {upstreams: ['*'], methods: [CONNECT]}}\n", "CONNECT is allowed by tunnel in upstreams"},
		{"a method in small letters", "roles: {r: {upstreams: ['*'], methods: [post]}}\n", `"post" is no method`},
		{"a relative path", "roles: {r: {upstreams: ['*'], paths: [v1]}}\n", `"v1" is no path that could fit`},
		{"a path with an escape", "roles: {r: {upstreams: ['*'], paths: [/v1%2fx]}}\n", "is no path that could fit"},
		{"a role against itself", "roles: {r: {upstreams: ['*'], paths: [/v1], deny_paths: [/v1]}}\n", "denies /v1, which paths allows"},
		{"roles against each other", "tenants: {a: {uids: [1], roles: [r, s]}}\nroles: {r: {upstreams: ['*'], paths: [/v1]}, s: {upstreams: [openai], deny_paths: [/v1]}}\n",
			"f:1: tenants.a.roles: role r allows /v1, which role s denies"},
		{"a key for nobody", "tenants: {a: {uids: [1], roles: [r], keys: {nope: k}}}\n" + role, `there is no upstream "nope"`},
		{"a key that cannot be used", "tenants: {a: {uids: [1], roles: [r], keys: {gemini: k}}}\nroles: {r: {upstreams: [openai]}}\n",
			"has a key for gemini, which none of its roles allows"},
		{"a key in a field of ours", "tenants: {a: {uids: [1], roles: [r], keys: {openai: 'Host: x'}}}\n" + role, "names a field that cannot be set"},
		{"claims without keys", "tenants: {a: {claims: {sub: x}, roles: [r]}}\n" + role, "no JWT can be verified"},
		{"keys without claims", "jwt: {issuer: x, secret: 0123456789abcdef0123456789abcdef}\n", "jwt: identifies nobody"},
		{"no issuer", "jwt: {secret: 0123456789abcdef0123456789abcdef}\ntenants: {a: {claims: {sub: x}, roles: [r]}}\n" + role, "jwt.issuer: is needed"},
		{"a short secret", "jwt: {issuer: x, secret: abc}\ntenants: {a: {claims: {sub: x}, roles: [r]}}\n" + role, "has 3 bytes: 32 are needed"},
		{"keys in clear", "jwt: {issuer: x, keys_url: 'http://idp.test/'}\ntenants: {a: {claims: {sub: x}, roles: [r]}}\n" + role, "needs https://host/path"},
		{"an issuer alone", "jwt: {issuer: x}\n", "does nothing without a key"},
		{"a long skew", "jwt: {issuer: x, skew: 1h, secret: 0123456789abcdef0123456789abcdef}\ntenants: {a: {claims: {sub: x}, roles: [r]}}\n" + role, "is more than 10m"},
		{"an admin listener for all", "admin: {address: '0.0.0.0:1'}\ntenants: {a: {uids: [1], roles: [r]}}\n" + role, "admin.address: \"0.0.0.0:1\" is reachable from outside"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := Parse("f", []byte(tt.file), env("EMPTY", "")); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestTenantWarnings(t *testing.T) {
	file := "listen: {address: '0.0.0.0:1', token: x, allow_uids: [1]}\njwt: {issuer: x, secret: 0123456789abcdef0123456789abcdef}\n" +
		"tenants: {a: {claims: {sub: x}, roles: [r]}}\nroles: {r: {upstreams: ['*']}, s: {upstreams: ['*']}}\n"
	_, warnings, err := Parse("f", []byte(file), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(warnings, "\n")
	for _, want := range []string{"f:1: listen.token: apps are known by", "f:1: listen.allow_uids: does nothing", "jwt.audience: is not set", "roles.s: does nothing: no tenant has it"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in:\n%s", want, all)
		}
	}
	if _, _, err := Parse("f", []byte(strings.Replace(file, "token: x, ", "", 1)), noEnv); err != nil {
		t.Errorf("tenants are not enough for a listener outside loopback: %v", err)
	}
}

func TestTenantKeys(t *testing.T) {
	tenant := Tenant{Keys: map[string]string{"up": "k", "azure": "api-key: k2"}}
	for _, tt := range []struct{ upstream, dialect, field, value string }{
		{"up", "openai", "Authorization", "Bearer k"}, {"up", "none", "Authorization", "Bearer k"}, {"up", "anthropic", "X-Api-Key", "k"},
		{"up", "gemini", "X-Goog-Api-Key", "k"}, {"azure", "openai", "api-key", "k2"}, {"other", "openai", "", ""},
	} {
		if field, v := tenant.Key(tt.upstream, tt.dialect); field != tt.field || v != tt.value {
			t.Errorf("%s, %s: %s: %s", tt.upstream, tt.dialect, field, v)
		}
	}
}

func TestTenantsAreShownWithoutSecretsAndTuned(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("s3cret-s3cret-s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := "tenants: {a: {token_files: [" + tokens + "], roles: [r], keys: {openai: s3cret}}, b: {tokens: [s3cret-s3cret-other], roles: [r]}}\nroles: {r: {upstreams: ['*']}}\n"
	cfg, _, err := parse("f", []byte(file), noEnv, Over{Tuned: map[string]string{"tenants.a.quota.requests": "7", "tenants.b.priority": "batch"}})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Tenants[0].Quota.Requests != 7 || cfg.Tenants[1].Priority != "batch" {
		t.Errorf("not tuned: %+v", cfg.Tenants)
	}
	shown := string(cfg.Show())
	if strings.Contains(shown, "s3cret") {
		t.Errorf("a secret is shown:\n%s", shown)
	}
	if _, _, err := Parse("shown", []byte(shown), noEnv); err != nil {
		t.Errorf("what is shown does not load: %v\n%s", err, shown)
	}
	for _, path := range []string{"tenants.a.roles", "tenants.a.tokens", "tenants.c.weight"} {
		if _, _, err := parse("f", []byte(file), noEnv, Over{Tuned: map[string]string{path: "[x]"}}); err == nil {
			t.Errorf("%s can be tuned", path)
		}
	}
	var schema struct {
		Properties map[string]struct {
			Additional struct {
				Properties map[string]any `json:"properties"`
			} `json:"additionalProperties"`
		} `json:"properties"`
	}
	_ = json.Unmarshal(Schema(), &schema) // another test has looked at it as a whole
	for section, keys := range nameSections {
		for _, k := range keys {
			top, _, _ := strings.Cut(k.path, ".")
			if schema.Properties[section].Additional.Properties[top] == nil || k.doc == "" {
				t.Errorf("%s.%s is not in the schema, or not documented", section, k.path)
			}
		}
	}
}
