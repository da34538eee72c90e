// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"
)

const (
	tokenA = "wwt_aaaaaaaaaaaaaaaaaaaa"
	tokenB = "wwt_bbbbbbbbbbbbbbbbbbbb"
)

func hash(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

// all is a role that allows everything an upstream has.
var all = Role{Name: "all", Upstreams: []string{AnyUpstream}}

func book(t testing.TB, cfg Config, keys *Keys, old *Book) *Book {
	t.Helper()
	b, err := New(cfg, keys, old)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func two(t testing.TB) *Book {
	return book(t, Config{Roles: []Role{all}, Tenants: []Settings{
		{Name: "a", Hashes: [][sha256.Size]byte{hash(tokenA)}, UIDs: []uint32{1000}, Roles: []string{"all"}},
		{Name: "b", Hashes: [][sha256.Size]byte{hash(tokenB)}, GIDs: []uint32{50}, Roles: []string{"all"}},
	}}, nil, nil)
}

func TestWhoCalls(t *testing.T) {
	is := func(uid uint32) func() (Peer, bool) {
		return func() (Peer, bool) { return Peer{UID: uid, GID: 50, HasGID: true}, true }
	}
	tests := []struct {
		name  string
		proof Proof
		who   string
		why   Reason
	}{
		{"nothing", Proof{}, "", NoProof},
		{"a token of ours", Proof{Own: tokenA, HasOwn: true}, "a", ""},
		{"a token where the API has its key", Proof{Shared: []string{tokenB}}, "b", ""},
		{"the second of two fields", Proof{Shared: []string{"sk-dummy", tokenB}}, "b", ""},
		{"a wrong token", Proof{Shared: []string{tokenA + "x"}}, "", Unknown},
		{"a token cut short", Proof{Shared: []string{tokenA[:len(tokenA)-1]}}, "", Unknown},
		{"an empty token", Proof{HasOwn: true}, "", Unknown},
		{"a wrong token of ours beside a right one", Proof{Own: "no", HasOwn: true, Shared: []string{tokenA}}, "", Unknown},
		{"a wrong token of ours, but the right user", Proof{Own: "no", HasOwn: true, Peer: is(1000)}, "", Unknown},
		{"the user", Proof{Peer: is(1000)}, "a", ""},
		{"the user, whose SDK had to send something", Proof{Shared: []string{"sk-dummy"}, Peer: is(1000)}, "a", ""},
		{"the group", Proof{Peer: is(7)}, "b", ""},
		{"a token goes before the user", Proof{Shared: []string{tokenB}, Peer: is(1000)}, "b", ""},
		{"a user that cannot be seen", Proof{Peer: func() (Peer, bool) { return Peer{UID: 1000}, false }}, "", NoProof},
		{"a group that cannot be seen", Proof{Peer: func() (Peer, bool) { return Peer{UID: 7, GID: 50}, true }}, "", NoProof},
		{"an oversized token", Proof{Shared: []string{strings.Repeat("x", MaxToken+1)}}, "", TooLarge},
		{"a JWT where none are", Proof{Shared: []string{"eyJ.eyJ.x"}}, "", Unknown},
	}
	b := two(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, why := b.Identify(tt.proof, time.Now())
			who := ""
			if got != nil {
				who = got.Name
			}
			if who != tt.who || why != tt.why {
				t.Errorf("%q, %q; want %q, %q", who, why, tt.who, tt.why)
			}
		})
	}
}

func TestOneProofMeansOneTenant(t *testing.T) {
	h := [][sha256.Size]byte{hash(tokenA)}
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"token", Config{Tenants: []Settings{{Name: "a", Hashes: h}, {Name: "b", Hashes: h}}}, "tenant b: has the same token as tenant a"},
		{"user", Config{Tenants: []Settings{{Name: "a", UIDs: []uint32{1}}, {Name: "b", UIDs: []uint32{1}}}}, "tenant b: has the same user 1 as tenant a"},
		{"group", Config{Tenants: []Settings{{Name: "a", GIDs: []uint32{1}}, {Name: "b", GIDs: []uint32{1}}}}, "tenant b: has the same group 1 as tenant a"},
		{"claims", Config{Tenants: []Settings{{Name: "a", Claims: map[string]string{"sub": "x"}}, {Name: "b", Claims: map[string]string{"sub": "x"}}}},
			"tenant b: has the same claims as tenant a"},
		{"no such role", Config{Tenants: []Settings{{Name: "a", Roles: []string{"x"}}}}, `tenant a: there is no role "x"`},
		{"a role for nothing", Config{Roles: []Role{{Name: "r"}}}, "role r: allows no upstream"},
		{"a role against itself", Config{Roles: []Role{{Name: "r", Upstreams: []string{"*"}, Paths: []string{"/v1/x"}, DenyPaths: []string{"/v1/x"}}}},
			"role r: allows and denies /v1/x"},
		{"roles against each other", Config{
			Roles:   []Role{{Name: "r", Upstreams: []string{"*"}, Paths: []string{"/v1/x"}}, {Name: "s", Upstreams: []string{"up"}, DenyPaths: []string{"/v1/x"}}},
			Tenants: []Settings{{Name: "a", Roles: []string{"r", "s"}}},
		}, "tenant a: its role r allows /v1/x, which its role s denies"},
		{"no path", Config{Roles: []Role{{Name: "r", Upstreams: []string{"*"}, Paths: []string{"v1"}}}}, `role r: pattern "v1" does not begin with /`},
		{"JWTs without keys", Config{JWT: &Validation{}}, "tenant: JWTs need keys"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := New(tt.cfg, nil, nil); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestRoles(t *testing.T) {
	chat := Role{Name: "chat", Upstreams: []string{"openai"}, Methods: []string{"POST"}, Paths: []string{"/v1/chat/completions", "/v1/models/*", "/v1/batches/**"}}
	rest := Role{Name: "rest", Upstreams: []string{AnyUpstream}, DenyPaths: []string{"/v1/files/**", "/v1/admin"}}
	out := Role{Name: "out", Upstreams: []string{Tunnel}}
	b := book(t, Config{Roles: []Role{chat, rest, out}, Tenants: []Settings{
		{Name: "chat", Roles: []string{"chat"}}, {Name: "rest", Roles: []string{"rest"}}, {Name: "both", Roles: []string{"chat", "out"}}, {Name: "none"},
	}}, nil, nil)
	tests := []struct {
		who, upstream, method, path string
		want                        bool
	}{
		{"chat", "openai", "POST", "/v1/chat/completions", true},
		{"chat", "openai", "POST", "/v1/chat/%63ompletions", true},
		{"chat", "openai", "GET", "/v1/chat/completions", false},
		{"chat", "other", "POST", "/v1/chat/completions", false},
		{"chat", Forward, "POST", "/v1/chat/completions", false},
		{"chat", "openai", "POST", "/v1/chat/completions/", false},
		{"chat", "openai", "POST", "/V1/chat/completions", false},
		{"chat", "openai", "POST", "/v1/models/m:generate", true},
		{"chat", "openai", "POST", "/v1/models/m/files", false},
		{"chat", "openai", "POST", "/v1/models/m%2ffiles", false},
		{"chat", "openai", "POST", "/v1/batches/a/b", true},
		{"chat", "openai", "POST", "/v1/batches/../files", false},
		{"chat", "openai", "POST", "/v1/batches/%2e%2e/files", false},
		{"chat", "openai", "POST", "/v1/batches/..", false},
		{"chat", "openai", "POST", "/v1/batches/.%2e", false},
		{"chat", "openai", "POST", "/v1/batches//files", false},
		{"chat", "openai", "POST", `/v1/batches/..\files`, false},
		{"chat", "openai", "POST", "/v1/batches/%252e%252e/files", false},
		{"chat", "openai", "POST", "/v1/batches/..;/files", false},
		{"chat", "openai", "POST", "/v1/batches/%zz", false},
		{"chat", "openai", "POST", "", false},
		{"chat", "openai", "OPTIONS", "*", false},
		{"rest", "openai", "DELETE", "/v1/x", true},
		{"rest", "openai", "GET", "/v1/files/1", false},
		{"rest", "openai", "GET", "/V1/FILES/1", false},
		{"rest", "openai", "GET", "/v1/%66iles/1", false},
		{"rest", "openai", "GET", "/v1/x/../files/1", false},
		{"rest", "openai", "GET", "/v1/Admin", false},
		{"rest", Tunnel, "CONNECT", "", false},
		{"both", Tunnel, "CONNECT", "", true},
		{"both", "openai", "POST", "/v1/chat/completions", true},
		{"none", "openai", "POST", "/v1/chat/completions", false},
	}
	for _, tt := range tests {
		if got := b.Tenant(tt.who).Permits(tt.upstream, tt.method, tt.path); got != tt.want {
			t.Errorf("%s: %s %s %s: %v", tt.who, tt.method, tt.upstream, tt.path, got)
		}
	}
	if !b.Tenant("chat").Reaches("openai") || b.Tenant("chat").Reaches(Tunnel) || !b.Tenant("rest").Reaches("openai") {
		t.Error("Reaches is wrong")
	}
}
