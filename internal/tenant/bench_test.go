// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// percentiles measures each run of one by itself, and reports p50, p99 and p99.9.
func percentiles(b *testing.B, one func(i int)) {
	b.Helper()
	took := slices.Repeat([]time.Duration{1}, 1<<20)[:0] // its pages are there
	for i := range 30_000 {                              // so are those of the heap, as in a process that has served a while
		one(i)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		begun := time.Now()
		one(i)
		if took = append(took, time.Since(begun)); len(took) == cap(took) {
			took = took[:0] // enough are left
		}
		i++
	}
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[min(len(took)-1, int(float64(len(took))*share))].Nanoseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "p50-µs")
	b.ReportMetric(at(0.99), "p99-µs")
	b.ReportMetric(at(0.999), "p99.9-µs")
}

// chain is what each request pays: token, role, quota.
func chain(b *testing.B, book *Book, token string, now time.Time) {
	t, why := book.Identify(Proof{Shared: []string{token}}, now)
	if why != "" {
		b.Fatal(why)
	}
	if !t.Permits("openai", "POST", "/v1/chat/completions") {
		b.Fatal("not permitted")
	}
	u, over := t.Begin(now, 2000)
	if over != nil {
		b.Fatal(*over)
	}
	u.Uploaded(2000, now)
	u.Chunks(100, now)
	u.End(120, now)
}

// BenchmarkChain has a hundred tenants, each with five roles.
func BenchmarkChain(b *testing.B) {
	p256 := signers()["p256"]
	keys := keysOf(b, KeyConfig{Secret: testSecret, File: write(b, asSet(b, asJWK(b, "k", p256.Public(), nil), asJWK(b, "r", signers()["rsa"].Public(), nil)))})
	v := validation
	cfg := Config{JWT: &v}
	var roles []string
	for i := range 5 {
		name := fmt.Sprint("role", i)
		roles = append(roles, name)
		path := fmt.Sprintf("/v1/other%d/*", i)
		if i == 4 {
			path = "/v1/chat/*"
		}
		cfg.Roles = append(cfg.Roles, Role{Name: name, Upstreams: []string{"openai"}, Methods: []string{"GET", "POST"}, Paths: []string{path}, DenyPaths: []string{"/v1/files/**"}})
	}
	for i := range 100 {
		name := fmt.Sprint("tenant", i)
		cfg.Tenants = append(cfg.Tenants, Settings{Name: name, Hashes: [][sha256.Size]byte{hash("token of " + name)}, Claims: map[string]string{"sub": name},
			Roles: roles, Limits: Limits{Requests: 1 << 50, OutputTokens: 1 << 50, Upload: 1 << 50, Streams: 100}})
	}
	book := book(b, cfg, keys, nil)
	now := time.Now()
	spin := 0
	b.Run("machine", func(b *testing.B) { // about as long as the chain, and nothing of ours: what the machine adds
		percentiles(b, func(int) {
			for range 3000 {
				spin++
			}
		})
	})
	b.Run("token", func(b *testing.B) {
		percentiles(b, func(int) { chain(b, book, "token of tenant42", now) })
	})
	digest := sha256.Sum256([]byte("x"))
	signature, err := ecdsa.SignASN1(rand.Reader, p256.(*ecdsa.PrivateKey), digest[:])
	if err != nil {
		b.Fatal(err)
	}
	b.Run("es256-signature-alone", func(b *testing.B) { // the rival of a fresh JWT: what nobody gets around
		percentiles(b, func(int) {
			if !ecdsa.VerifyASN1(&p256.(*ecdsa.PrivateKey).PublicKey, digest[:], signature) {
				b.Fatal("not verified")
			}
		})
	})
	one := sign(b, jwt.SigningMethodES256, p256, "k", good(now, map[string]any{"sub": "tenant42"}))
	b.Run("jwt/remembered", func(b *testing.B) {
		percentiles(b, func(int) { chain(b, book, one, now) })
	})
	for name, m := range map[string]jwt.SigningMethod{"es256": jwt.SigningMethodES256, "rs256": jwt.SigningMethodRS256, "hs256": jwt.SigningMethodHS256} {
		var key any = []byte(testSecret)
		id := map[string]string{"es256": "k", "rs256": "r"}[name]
		switch name {
		case "es256":
			key = p256
		case "rs256":
			key = signers()["rsa"]
		}
		token := sign(b, m, key, id, good(now, map[string]any{"sub": "tenant42"}))
		b.Run("jwt/fresh-"+name, func(b *testing.B) {
			percentiles(b, func(int) {
				book.jwt.mu.Lock()
				clear(book.jwt.now)
				clear(book.jwt.old)
				book.jwt.mu.Unlock()
				chain(b, book, token, now)
			})
		})
	}
}
