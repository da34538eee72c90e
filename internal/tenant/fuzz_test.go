// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// FuzzIdentify lets nobody in but those who have a token that was made here.
func FuzzIdentify(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	keys := keysOf(f, KeyConfig{Secret: testSecret, File: write(f, asSet(f, asJWK(f, "k", signers()["p256"].Public(), nil)))})
	b := jwtBook(f, keys)
	valid := map[string]bool{
		sign(f, jwt.SigningMethodHS256, []byte(testSecret), "", good(now, nil)): true,
		sign(f, jwt.SigningMethodES256, signers()["p256"], "k", good(now, nil)): true,
	}
	for token := range valid {
		f.Add(token)
		f.Add(token[:len(token)-1])
		f.Add(strings.Replace(token, ".", "..", 1))
	}
	f.Add("eyJhbGciOiJub25lIn0.eyJzdWIiOiJzdmMtYSJ9.")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		who, why := identify(b, token, now)
		if who != "" && !valid[token] {
			t.Errorf("%q is %s", token, who)
		}
		if who == "" && why == "" {
			t.Errorf("%q: no reason", token)
		}
		_ = b.Recognises(token)
	})
}

// FuzzParseKeys takes only keys that have an algorithm and can be asked.
func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kty":"RSA","n":"AQ","e":"AQAB"},{"kty":"oct","k":"AA"}]}`))
	for name, k := range signers() {
		f.Add(asSet(f, asJWK(f, name, k.Public(), nil)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, local := range []bool{true, false} {
			keys, err := parseKeys(text, local)
			if (err == nil) != (len(keys) > 0) {
				t.Fatalf("%d keys, %v", len(keys), err)
			}
			for _, k := range keys {
				if len(k.algorithms) == 0 {
					t.Fatal("a key without an algorithm")
				}
				for _, alg := range k.algorithms {
					if jwt.GetSigningMethod(alg).Verify("a.b", []byte("sig"), k.value) == nil {
						t.Fatal("a signature that is none was accepted")
					}
				}
			}
		}
	})
}

// FuzzPermits never finds a way out of what a role allows.
func FuzzPermits(f *testing.F) {
	b := book(f, Config{Roles: []Role{{Name: "r", Upstreams: []string{"up"}, Paths: []string{"/v1/chat/**", "/v1/m/*"}, DenyPaths: []string{"/v1/chat/secret*"}}},
		Tenants: []Settings{{Name: "a", Roles: []string{"r"}}}}, nil, nil)
	for _, p := range []string{"/v1/chat/x", "/v1/m/%2e%2e/x", "/v1/chat/../files", "/v1/chat/SECRET", "*", "/v1/m/a:b"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if !b.Tenant("a").Permits("up", "GET", path) {
			return
		}
		plain, ok := canonical(path)
		if !ok || !strings.HasPrefix(plain, "/v1/chat/") && !strings.HasPrefix(plain, "/v1/m/") || strings.Contains(plain, "/../") ||
			strings.HasSuffix(plain, "/..") || strings.HasPrefix(strings.ToLower(plain), "/v1/chat/secret") && !strings.Contains(plain[len("/v1/chat/secret"):], "/") {
			t.Errorf("%q is allowed", path)
		}
	})
}
