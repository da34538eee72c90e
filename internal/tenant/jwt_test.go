// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const testSecret = "0123456789abcdef0123456789abcdef"

// signers are one key of each kind, made once.
var signers = sync.OnceValue(func() map[string]crypto.Signer {
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	_, e, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	out := map[string]crypto.Signer{"rsa": r, "ed": e}
	for name, curve := range map[string]elliptic.Curve{"p256": elliptic.P256(), "p384": elliptic.P384(), "p521": elliptic.P521()} {
		if out[name], err = ecdsa.GenerateKey(curve, rand.Reader); err != nil {
			panic(err)
		}
	}
	return out
})

// asJWK writes a public key as a JWK.
func asJWK(t testing.TB, id string, public crypto.PublicKey, more map[string]any) map[string]any {
	t.Helper()
	b64 := base64.RawURLEncoding.EncodeToString
	j := map[string]any{}
	switch p := public.(type) {
	case *rsa.PublicKey:
		j = map[string]any{"kty": "RSA", "n": b64(p.N.Bytes()), "e": b64(big.NewInt(int64(p.E)).Bytes())}
	case *ecdsa.PublicKey:
		point, err := p.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		half := (len(point) - 1) / 2
		j = map[string]any{"kty": "EC", "crv": p.Params().Name, "x": b64(point[1 : 1+half]), "y": b64(point[1+half:])}
	case ed25519.PublicKey:
		j = map[string]any{"kty": "OKP", "crv": "Ed25519", "x": b64(p)}
	}
	if id != "" {
		j["kid"] = id
	}
	maps.Copy(j, more)
	return j
}

func asSet(t testing.TB, keys ...map[string]any) []byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t testing.TB, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// keysOf are Keys with one source, and no Run.
func keysOf(t testing.TB, cfg KeyConfig) *Keys {
	t.Helper()
	src, err := Load(cfg)
	if err != nil {
		t.Fatal(err)
	}
	k := NewKeys(func(context.Context, string) ([]byte, error) { return nil, errors.New("no network") })
	k.Use(src)
	return k
}

func sign(t testing.TB, method jwt.SigningMethod, key any, id string, claims jwt.MapClaims) string {
	t.Helper()
	tok := jwt.NewWithClaims(method, claims)
	if id != "" {
		tok.Header["kid"] = id
	}
	text, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// good are claims that are accepted at now, with changes; a nil value takes one out.
func good(now time.Time, changes map[string]any) jwt.MapClaims {
	c := jwt.MapClaims{"iss": "https://idp.example", "aud": "warmwire", "sub": "svc-a", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix()}
	for name, v := range changes {
		if v == nil {
			delete(c, name)
		} else {
			c[name] = v
		}
	}
	return c
}

var validation = Validation{Issuer: "https://idp.example", Audience: []string{"warmwire", "gateway"}, Skew: 30 * time.Second}

func jwtBook(t testing.TB, keys *Keys) *Book {
	v := validation
	return book(t, Config{JWT: &v, Roles: []Role{all}, Tenants: []Settings{
		{Name: "a", Claims: map[string]string{"sub": "svc-a"}, Roles: []string{"all"}},
		{Name: "team", Claims: map[string]string{"groups": "ml", "env": "prod"}, Roles: []string{"all"}},
		{Name: "twin", Claims: map[string]string{"groups": "ops"}, Roles: []string{"all"}},
	}}, keys, nil)
}

// identify asks by an SDK's field.
func identify(b *Book, token string, now time.Time) (string, Reason) {
	t, why := b.Identify(Proof{Shared: []string{token}}, now)
	if t == nil {
		return "", why
	}
	return t.Name, why
}

func TestEachKindOfKey(t *testing.T) {
	var set []map[string]any
	for name, k := range signers() {
		set = append(set, asJWK(t, name, k.Public(), nil))
	}
	file := write(t, asSet(t, set...))
	b := jwtBook(t, keysOf(t, KeyConfig{Secret: testSecret, File: file}))
	var text []byte
	for _, k := range signers() {
		der, err := x509.MarshalPKIXPublicKey(k.Public())
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)
	}
	fromPEM := jwtBook(t, keysOf(t, KeyConfig{Secret: testSecret, File: write(t, text)}))
	now := time.Now()
	for _, tt := range []struct {
		method jwt.SigningMethod
		key    string
	}{
		{jwt.SigningMethodRS256, "rsa"}, {jwt.SigningMethodRS384, "rsa"}, {jwt.SigningMethodRS512, "rsa"}, {jwt.SigningMethodPS256, "rsa"},
		{jwt.SigningMethodES256, "p256"}, {jwt.SigningMethodES384, "p384"}, {jwt.SigningMethodES512, "p521"}, {jwt.SigningMethodEdDSA, "ed"},
		{jwt.SigningMethodHS256, ""}, {jwt.SigningMethodHS384, ""}, {jwt.SigningMethodHS512, ""},
	} {
		var key any = []byte(testSecret)
		if tt.key != "" {
			key = signers()[tt.key]
		}
		for _, id := range []string{"", tt.key} {
			token := sign(t, tt.method, key, id, good(now, nil))
			for name, b := range map[string]*Book{"JWK set": b, "PEM": fromPEM} {
				if who, why := identify(b, token, now); who != "a" {
					t.Errorf("%s with kid %q, keys of %s: %q, %s", tt.method.Alg(), id, name, who, why)
				}
			}
		}
	}
}

func TestBadJWTs(t *testing.T) {
	p256, other := signers()["p256"], signers()["rsa"]
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// Only an EC and an RSA key, so that every HS token is a confusion of algorithms.
	rsaJWK := asJWK(t, "rsa", other.Public(), map[string]any{"alg": "RS256"})
	file := write(t, asSet(t, asJWK(t, "p256", p256.Public(), nil), rsaJWK))
	b := jwtBook(t, keysOf(t, KeyConfig{File: file}))
	now := time.Now()
	ec := func(changes map[string]any) string {
		return sign(t, jwt.SigningMethodES256, p256, "p256", good(now, changes))
	}
	header := func(fields string) string { return base64.RawURLEncoding.EncodeToString([]byte(fields)) }
	parts := strings.Split(ec(nil), ".")
	der, err := x509.MarshalPKIXPublicKey(other.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	critical := jwt.NewWithClaims(jwt.SigningMethodES256, good(now, nil))
	critical.Header["crit"] = []string{"exp"}
	signedCritical, err := critical.SignedString(p256)
	if err != nil {
		t.Fatal(err)
	}
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, good(now, nil)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, token string
		why         Reason
	}{
		{"expired", ec(map[string]any{"exp": now.Add(-31 * time.Second).Unix()}), Expired},
		{"without an expiry", ec(map[string]any{"exp": nil}), Claims},
		{"an expiry that is no time", ec(map[string]any{"exp": "tomorrow"}), Claims},
		{"not valid yet", ec(map[string]any{"nbf": now.Add(32 * time.Second).Unix()}), Early},
		{"issued in the future", ec(map[string]any{"iat": now.Add(32 * time.Second).Unix()}), Early},
		{"another issuer", ec(map[string]any{"iss": "https://idp.example.evil"}), Claims},
		{"no issuer", ec(map[string]any{"iss": nil}), Claims},
		{"another audience", ec(map[string]any{"aud": "somebody"}), Claims},
		{"no audience", ec(map[string]any{"aud": nil}), Claims},
		{"nobody we know", ec(map[string]any{"sub": "svc-z"}), Claims},
		{"a subject that is no text", ec(map[string]any{"sub": 1}), Claims},
		{"two tenants", ec(map[string]any{"groups": []string{"ops"}}), Ambiguous},
		{"signed by another", sign(t, jwt.SigningMethodES256, stranger, "p256", good(now, nil)), Signature},
		{"unknown key", sign(t, jwt.SigningMethodES256, p256, "zzz", good(now, nil)), Key},
		{"unsigned", none, Signature},
		{"unsigned, in capitals", header(`{"alg":"NONE"}`) + "." + parts[1] + ".", Unsigned},
		{"signature cut off", parts[0] + "." + parts[1] + ".", Signature},
		{"an algorithm of no key", sign(t, jwt.SigningMethodPS256, other, "rsa", good(now, nil)), Signature},
		{"an algorithm of another key", header(`{"alg":"RS256","kid":"p256"}`) + "." + parts[1] + "." + parts[2], Unsigned},
		{"HS with the public key as secret", sign(t, jwt.SigningMethodHS256, public, "rsa", good(now, nil)), Signature},
		{"HS with an empty secret", sign(t, jwt.SigningMethodHS256, []byte{}, "", good(now, nil)), Signature},
		{"no algorithm", header(`{"typ":"JWT"}`) + "." + parts[1] + "." + parts[2], Unsigned},
		{"critical extensions", signedCritical, Unsigned},
		{"a key of its own", header(`{"alg":"ES256","jwk":{"kty":"EC"},"kid":"nope"}`) + "." + parts[1] + "." + parts[2], Key},
		{"padding", parts[0] + "=." + parts[1] + "." + parts[2], Malformed},
		{"no JSON", "eyJ.eyJ.eyJ", Malformed},
		{"a claim that is changed", parts[0] + "." + strings.TrimRight(base64.URLEncoding.EncodeToString([]byte(`{"sub":"svc-a","exp":9999999999}`)), "=") + "." + parts[2], Signature},
		{"oversized", ec(map[string]any{"x": strings.Repeat("x", MaxToken)}), TooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second time is no luckier
				if who, why := identify(b, tt.token, now); who != "" || why != tt.why {
					t.Errorf("%q, %q; want %q", who, why, tt.why)
				}
			}
		})
	}
	for name, changes := range map[string]map[string]any{
		"the slower clock":   {"iat": now.Add(29 * time.Second).Unix(), "nbf": now.Add(29 * time.Second).Unix()},
		"the faster clock":   {"exp": now.Add(-29 * time.Second).Unix()},
		"a list of audience": {"aud": []string{"x", "gateway"}},
	} {
		if who, why := identify(b, ec(changes), now); who != "a" {
			t.Errorf("%s: %s", name, why)
		}
	}
	if who, why := identify(b, ec(map[string]any{"sub": "x", "groups": []string{"web", "ml"}, "env": "prod"}), now); who != "team" {
		t.Errorf("by group: %q, %s", who, why)
	}
	if who, _ := identify(b, ec(map[string]any{"sub": "x", "groups": []string{"ml"}}), now); who != "" {
		t.Errorf("half of the claims: %q", who)
	}
}

// TestVerifiedOnce spoils the key after the first time: whoever is remembered
// is not verified again.
func TestVerifiedOnce(t *testing.T) {
	p256 := signers()["p256"]
	now := time.Now().Truncate(time.Second) // as exp is
	keys := keysOf(t, KeyConfig{File: write(t, asSet(t, asJWK(t, "k", p256.Public(), nil)))})
	b := jwtBook(t, keys)
	token := sign(t, jwt.SigningMethodES256, p256, "k", good(now, map[string]any{"exp": now.Add(time.Minute).Unix()}))
	if who, why := identify(b, token, now); who != "a" {
		t.Fatalf("%q, %s", who, why)
	}
	keys.current().keys[0].value = signers()["p384"].Public()
	if who, why := identify(b, token, now.Add(90*time.Second-1)); who != "a" {
		t.Errorf("remembered: %q, %s", who, why)
	}
	if who, _ := identify(b, token, now.Add(90*time.Second)); who != "" {
		t.Errorf("expired: still %q", who)
	}
	if who, _ := identify(b, token[:len(token)-2]+"xx", now); who != "" {
		t.Errorf("another signature: still %q", who)
	}
	keys.set.Store(newKeySet(keys.current().keys)) // other keys
	if who, _ := identify(b, token, now); who != "" {
		t.Errorf("the keys have changed: still %q", who)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	keys := keysOf(t, KeyConfig{Secret: testSecret})
	b := jwtBook(t, keys)
	for i := range 3 * maxRemembered {
		b.jwt.remember(sha256.Sum256([]byte{byte(i), byte(i >> 8)}), keys.current(), verified{})
		if n := len(b.jwt.now) + len(b.jwt.old); n > maxRemembered {
			t.Fatalf("%d are remembered", n)
		}
	}
}

func TestBadKeys(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skipf("this Go makes no weak key to try: %v", err)
	}
	p256 := signers()["p256"].Public()
	private, err := x509.MarshalPKCS8PrivateKey(signers()["p256"])
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		text []byte
		want string
	}{
		{"nothing", nil, "has no key to verify with"},
		{"no keys", []byte(`{"keys":[]}`), "has no key to verify with"},
		{"something else", []byte("hello"), "is neither PEM nor a JWK set"},
		{"broken JSON", []byte(`{"keys":[`), "is no JWK set"},
		{"weak", asSet(t, asJWK(t, "", weak.Public(), nil)), "key 1 of the set: an RSA key of 1024 bits"},
		{"off the curve", asSet(t, asJWK(t, "", p256, map[string]any{"x": strings.Repeat("A", 43)})), "an EC key that is none"},
		{"short coordinate", asSet(t, asJWK(t, "", p256, map[string]any{"x": "AA"})), "wrong length"},
		{"for encryption", asSet(t, asJWK(t, "", p256, map[string]any{"use": "enc"})), "has no key to verify with"},
		{"an algorithm of another kind", asSet(t, asJWK(t, "", p256, map[string]any{"alg": "HS256"})), "is not for such a key"},
		{"a private key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), `has a "PRIVATE KEY": public keys are needed`},
		{"short secret", asSet(t, map[string]any{"kty": "oct", "k": "AAAA"}), "a secret of 3 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Load(KeyConfig{File: write(t, tt.text)}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	if _, err := Load(KeyConfig{Secret: "short"}); err == nil {
		t.Error("a short secret is taken")
	}
	oct := asSet(t, map[string]any{"kty": "oct", "k": base64.RawURLEncoding.EncodeToString([]byte(testSecret))})
	if _, err := parseKeys(oct, false); err == nil {
		t.Error("a secret is taken from the network")
	}
	mixed := asSet(t, asJWK(t, "", weak.Public(), nil), asJWK(t, "ok", p256, nil), map[string]any{"kty": "new"})
	if keys, err := parseKeys(mixed, false); err != nil || len(keys) != 1 {
		t.Errorf("one good key among others: %v, %v", keys, err)
	}
}
