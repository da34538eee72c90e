// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestNeverAnUnlistedHost(t *testing.T) {
	a := newCA(t, Config{Hosts: []string{"api.example", "127.0.0.1"}})
	for host, want := range map[string]error{
		"api.example": nil, "API.EXAMPLE.": nil, "127.0.0.1": nil, "::ffff:127.0.0.1": nil,
		"eu.api.example": ErrUnlisted, "example": ErrUnlisted, "evil.example": ErrUnlisted, "127.0.0.2": ErrUnlisted, "::1": ErrUnlisted,
		"localhost": ErrUnlisted, noDomain: ErrUnlisted,
		"*.example": ErrInvalid, "*": ErrInvalid, "": ErrInvalid, "api.example:443": ErrInvalid, "api.example,evil.example": ErrInvalid,
	} {
		cert, err := a.Certificate(host)
		if !errors.Is(err, want) || (err == nil) != (cert != nil) {
			t.Errorf("Certificate(%q) = %v, %v; want %v", host, cert, err, want)
		}
	}
	if got := a.Minted(); got != 2 {
		t.Errorf("made %d certificates, want 2", got)
	}
}

func TestConfigIsChecked(t *testing.T) {
	ok := []string{"api.example"}
	for name, cfg := range map[string]Config{
		"no hosts":              {},
		"a pattern":             {Hosts: []string{"*.example"}},
		"too many hosts":        {Hosts: manyHosts(1001)},
		"leaf of eight days":    {Hosts: ok, LeafValidity: 8 * 24 * time.Hour},
		"leaf of a day":         {Hosts: ok, LeafValidity: 24 * time.Hour},
		"negative leaf":         {Hosts: ok, LeafValidity: -1},
		"authority of two days": {Hosts: ok, Validity: 48 * time.Hour},
		"negative cache":        {Hosts: ok, Cache: -1},
	} {
		if a, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), "ca: ") {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	if _, err := New(Config{Hosts: manyHosts(1000)}); err != nil {
		t.Errorf("1000 hosts: %v", err)
	}
}

func manyHosts(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("host-%d.example", i)
	}
	return list
}

// A host's certificate is made once however many ask, and the least recently used is
// forgotten at the bound.
func TestTheCacheIsBounded(t *testing.T) {
	a := newCA(t, Config{Hosts: manyHosts(10), Cache: 3})
	ask := func(i int) { issuer(t, a, fmt.Sprintf("host-%d.example", i)) }
	for _, step := range []struct {
		ask  int
		made uint64
	}{{0, 1}, {1, 2}, {2, 3}, {0, 3}, {3, 4}, {0, 4}, {2, 4}, {1, 5}, {3, 6}, {2, 6}} {
		if ask(step.ask); a.Minted() != step.made {
			t.Fatalf("after host %d: made %d, want %d", step.ask, a.Minted(), step.made)
		}
	}
	if len(a.leaves.byName) != 3 || a.leaves.order.Len() != 3 {
		t.Errorf("%d and %d hosts are kept, want 3", len(a.leaves.byName), a.leaves.order.Len())
	}
}

func TestManyAtOnceMakeOne(t *testing.T) {
	a := newCA(t, Config{})
	var all sync.WaitGroup
	certs := make([]*tls.Certificate, 100)
	for i := range certs {
		all.Go(func() { certs[i], _ = a.Certificate("api.example") })
	}
	all.Wait()
	for _, cert := range certs {
		if cert == nil || cert != certs[0] {
			t.Fatal("not all have got the same certificate")
		}
	}
	if got := a.Minted(); got != 1 {
		t.Errorf("made %d certificates, want 1", got)
	}
}

// The clock is read at each use: in time, asleep, back and forth.
func TestACertificateIsRenewedInUse(t *testing.T) {
	clock := newClock()
	start := clock.t
	const day = 24 * time.Hour
	a := newCA(t, Config{Now: clock.now})
	for _, step := range []struct {
		at   time.Duration
		made uint64
	}{
		{0, 1},
		{4*day - 1, 1},
		{4 * day, 2},                     // two of six days are left
		{8*day - 1, 2},                   // of the second
		{30 * day, 3},                    // slept
		{29*day + time.Minute, 3},        // the clock was put back, within what clients bear
		{29*day - time.Second, 4},        // and further than that
		{-day, 5},                        // far
		{700 * day, 6}, {700*day + 1, 6}, // and forth
	} {
		clock.t = start.Add(step.at)
		cert, err := a.Certificate("api.example")
		if err != nil {
			t.Fatalf("at %v: %v", step.at, err)
		}
		if clock.t.Before(cert.Leaf.NotBefore) || !clock.t.Before(cert.Leaf.NotAfter) {
			t.Errorf("at %v: valid from %v to %v, and it is %v", step.at, cert.Leaf.NotBefore, cert.Leaf.NotAfter, clock.t)
		}
		if got := a.Minted(); got != step.made {
			t.Errorf("at %v: made %d, want %d", step.at, got, step.made)
		}
	}
}

// While one renews a certificate the others go on with the old one.
func TestARenewalKeepsNobodyWaiting(t *testing.T) {
	clock := newClock()
	a := newCA(t, Config{Now: clock.now})
	old, err := a.Certificate("api.example")
	if err != nil {
		t.Fatal(err)
	}
	clock.t = clock.t.Add(5 * 24 * time.Hour)
	e := a.leaves.get("api.example")
	e.making.Lock() // as the one does that makes it
	got, err := a.Certificate("api.example")
	e.making.Unlock()
	if err != nil || got != old {
		t.Errorf("%v, want the old one at once", err)
	}
	if got, err = a.Certificate("api.example"); err != nil || got == old {
		t.Errorf("%v, want a new one", err)
	}
}

func BenchmarkCertificate(b *testing.B) {
	hosts := manyHosts(1000)
	b.Run("minted", func(b *testing.B) {
		a := newCA(b, Config{Hosts: hosts, Cache: 1})
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := a.Certificate(hosts[i%2]); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, a := range map[string]*Authority{"cached in memory": newCA(b, Config{Hosts: hosts}), "cached with a file": openCA(b, b.TempDir()+"/ca", Config{Hosts: hosts})} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Certificate("host-7.example"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
