// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A keyServer is a place where a JWK set can be fetched.
type keyServer struct {
	mu    sync.Mutex // guards the fields below
	text  []byte     // nil = it cannot be reached
	asked []time.Duration
	start time.Time
}

func (k *keyServer) fetch(context.Context, string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, time.Since(k.start))
	if k.text == nil {
		return nil, errors.New("unreachable")
	}
	return k.text, nil
}

func (k *keyServer) times() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.asked)
}

func (k *keyServer) set(text []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.text = text
}

// running is Keys with a Run that ends with the test.
func running(t *testing.T, k *keyServer, cfg KeyConfig) *Keys {
	t.Helper()
	k.start = time.Now()
	src, err := Load(cfg)
	if err != nil {
		t.Fatal(err)
	}
	keys := NewKeys(k.fetch)
	keys.Use(src)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- keys.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return keys
}

const keyURL = "https://idp.example/keys"

func TestKeysAreKeptWhileTheirServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p256, old := signers()["p256"], asSet(t, asJWK(t, "old", signers()["p256"].Public(), nil))
		srv := &keyServer{}
		keys := running(t, srv, KeyConfig{URL: keyURL, Refresh: 10 * time.Minute})
		b := jwtBook(t, keys)
		token := sign(t, jwt.SigningMethodES256, p256, "old", good(time.Now(), map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()}))
		if _, why := identify(b, token, time.Now()); why != NoKeys {
			t.Errorf("before any keys: %s", why)
		}
		srv.set(old)
		time.Sleep(time.Minute)
		if who, why := identify(b, token, time.Now()); who != "a" {
			t.Fatalf("with keys: %q, %s", who, why)
		}
		for _, broken := range [][]byte{nil, []byte("<html>"), []byte(`{"keys":[]}`), make([]byte, maxKeyBytes+1)} {
			srv.set(broken)
			time.Sleep(time.Hour)
			if who, why := identify(b, token, time.Now()); who != "a" || keys.State().Err == nil {
				t.Errorf("with %.10q: %q, %s, %v", broken, who, why, keys.State().Err)
			}
		}
		srv.set(asSet(t, asJWK(t, "new", p256.Public(), nil)))
		time.Sleep(11 * time.Minute)
		if _, why := identify(b, token, time.Now()); why != Key || keys.State().Err != nil {
			t.Errorf("its key has gone: %s, %v", why, keys.State().Err)
		}
	})
}

func TestWhenKeysAreFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &keyServer{}
		running(t, srv, KeyConfig{URL: keyURL, Refresh: 10 * time.Second})
		time.Sleep(30 * time.Second)
		srv.set(asSet(t, asJWK(t, "k", signers()["p256"].Public(), nil)))
		time.Sleep(30 * time.Second)
		srv.mu.Lock()
		defer srv.mu.Unlock()
		// At once, then with pauses that double up to the usual one.
		want := []time.Duration{0, s, 3 * s, 7 * s, 15 * s, 25 * s, 35 * s, 45 * s, 55 * s}
		if !slices.Equal(srv.asked, want) {
			t.Errorf("asked at %v, want %v", srv.asked, want)
		}
	})
}

// TestUnknownKeysDoNotSetThePace asks for a key that is not known a thousand times.
func TestUnknownKeysDoNotSetThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p256 := signers()["p256"]
		srv := &keyServer{text: asSet(t, asJWK(t, "old", p256.Public(), nil))}
		keys := running(t, srv, KeyConfig{URL: keyURL, Refresh: time.Hour})
		b := jwtBook(t, keys)
		token := sign(t, jwt.SigningMethodES256, p256, "new", good(time.Now(), nil))
		before := srv.times()
		srv.set(asSet(t, asJWK(t, "new", p256.Public(), nil)))
		for range 100 {
			_, _ = identify(b, token, time.Now())
			time.Sleep(100 * time.Millisecond)
		}
		if n := srv.times() - before; n != 0 {
			t.Errorf("asked %d times in the first 10 s", n)
		}
		time.Sleep(20*time.Second + 1)
		if who, why := identify(b, token, time.Now()); who != "a" {
			t.Errorf("after 30 s: %q, %s", who, why)
		}
		if n := srv.times() - before; n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestTheFileOfKeysIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p256 := signers()["p256"]
		file := write(t, asSet(t, asJWK(t, "old", p256.Public(), nil)))
		keys := running(t, &keyServer{}, KeyConfig{File: file, Refresh: time.Minute})
		b := jwtBook(t, keys)
		token := sign(t, jwt.SigningMethodES256, p256, "new", good(time.Now(), nil))
		for _, step := range []struct {
			text []byte
			why  Reason
		}{{[]byte("junk"), Key}, {asSet(t, asJWK(t, "new", p256.Public(), nil)), ""}, {nil, ""}} {
			if err := os.WriteFile(file, step.text, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			if _, why := identify(b, token, time.Now()); why != step.why {
				t.Errorf("%.20q: %q, want %q", step.text, why, step.why)
			}
		}
	})
}

func TestReloadKeepsFetchedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &keyServer{text: asSet(t, asJWK(t, "k", signers()["p256"].Public(), nil))}
		keys := running(t, srv, KeyConfig{URL: keyURL})
		srv.set(nil)
		before := keys.current()
		use := func(cfg KeyConfig) {
			src, err := Load(cfg)
			if err != nil {
				t.Fatal(err)
			}
			keys.Use(src)
			synctest.Wait()
		}
		use(KeyConfig{URL: keyURL})
		if keys.current() != before {
			t.Error("the same keys count as others")
		}
		use(KeyConfig{URL: keyURL, Secret: testSecret})
		if keys.State().Keys != 2 {
			t.Errorf("%d keys, want the fetched one and the secret", keys.State().Keys)
		}
		use(KeyConfig{URL: keyURL + "2"})
		if keys.State().Keys != 0 {
			t.Errorf("%d keys of a URL that counts no more", keys.State().Keys)
		}
	})
}
