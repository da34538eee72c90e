// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fill writes a cache file with one name, by running a Resolver.
func fill(t *testing.T, dir string, records ...string) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, Config{CacheFile: dir + "/cache"}, map[string]*fake{systemX: knows(host, records...)})
		b.want(host, "[2001:db8::1 192.0.2.1]")
		if got := b.events(); len(got) != 0 {
			t.Errorf("events %q", got)
		}
	})
}

func TestARestartIsWarm(t *testing.T) {
	for _, age := range []time.Duration{time.Second, time.Hour, 23 * time.Hour} {
		t.Run(age.String(), func(t *testing.T) {
			dir := t.TempDir()
			fill(t, dir, "60 A 192.0.2.1", "60 AAAA 2001:db8::1", "60 HTTPS h3")
			if st, err := os.Stat(dir + "/cache"); err != nil || st.Mode().Perm() != 0o600 {
				t.Fatalf("file: %v, %v", st, err)
			}
			sys := knows(host, "60 A 192.0.2.7")
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(age) // the machine was off
				b := start(t, dir, Config{CacheFile: dir + "/cache"}, map[string]*fake{systemX: sys})
				a := b.wantIn(0, host, "[2001:db8::1 192.0.2.1]")
				if a.Stale != (age > time.Minute) || len(a.Services) != 1 {
					t.Errorf("answer %+v", a)
				}
				b.Keep([]string{host})
				b.pass(20 * ms)
				if a = b.wantIn(0, host, "[192.0.2.7]"); a.Stale {
					t.Error("stale after the refresh")
				}
			})
		})
	}
}

func TestAnOldFileServesNothing(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, "60 A 192.0.2.1", "60 AAAA 2001:db8::1")
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(24*time.Hour + 2*time.Minute)
		b := start(t, dir, Config{CacheFile: dir + "/cache"}, nil)
		b.want(host, "timeout")
	})
}

// A machine without a clock of its own starts in the past.
func TestAFileFromTheFutureIsStale(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, Config{CacheFile: dir + "/cache"}, map[string]*fake{systemX: knows(host, "60 A 192.0.2.1")})
		b.mu.Lock()
		b.ahead = 1000 * time.Hour
		b.mu.Unlock()
		b.want(host, "[192.0.2.1]")
	})
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, Config{CacheFile: dir + "/cache"}, nil)
		if a := b.wantIn(0, host, "[192.0.2.1]"); !a.Stale {
			t.Error("it is taken for fresh")
		}
	})
}

func TestADamagedFileIsIgnored(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, "60 A 192.0.2.1", "60 AAAA 2001:db8::1")
	whole, err := os.ReadFile(dir + "/cache")
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string][]byte{
		"empty":         {},
		"cut":           whole[:len(whole)/2],
		"other version": bytes.Replace(whole, []byte("dnscache-1"), []byte("dnscache-9"), 1),
		"changed":       bytes.Replace(whole, []byte("192.0.2.1"), []byte("192.0.2.6"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			writeFile(t, dir+"/cache", string(damaged))
			synctest.Test(t, func(t *testing.T) {
				b := start(t, dir, Config{CacheFile: dir + "/cache"}, map[string]*fake{systemX: knows(host, "60 A 192.0.2.8")})
				if got := fmt.Sprint(b.events()); got != "[cache_file cache]" {
					t.Errorf("events %s", got)
				}
				b.wantIn(20*ms, host, "[192.0.2.8]")
				b.pass(6 * sec)
				if b, err := os.ReadFile(dir + "/cache"); err != nil || !bytes.Contains(b, []byte("192.0.2.8")) {
					t.Errorf("not written anew: %s, %v", b, err)
				}
			})
		})
	}
	if left, _ := filepath.Glob(dir + "/.*"); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestTheFileIsWrittenSeldom(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		sys := knows(host, "10 A 192.0.2.1")
		b := start(t, dir, Config{CacheFile: dir + "/cache"}, map[string]*fake{systemX: sys})
		b.Keep([]string{host})
		writes, last := 0, ""
		for range 1800 {
			b.pass(sec)
			if text, _ := os.ReadFile(dir + "/cache"); string(text) != last {
				writes++
				last = string(text)
			}
		}
		if writes < 3 || writes > 5 {
			t.Errorf("%d writes in half an hour of refreshes", writes)
		}
		sys.set(func(f *fake) { f.zone[host] = []string{"10 A 192.0.2.2"} })
		b.pass(20 * sec)
		if text, _ := os.ReadFile(dir + "/cache"); !strings.Contains(string(text), "192.0.2.2") {
			t.Error("a new address is not written soon")
		}
	})
}

func TestAFileThatCannotBeWrittenIsToldOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		sys := knows(host, "10 A 192.0.2.1")
		b := start(t, dir, Config{CacheFile: dir + "/none/cache"}, map[string]*fake{systemX: sys})
		b.Keep([]string{host})
		b.pass(time.Hour)
		if got := b.events(); len(got) != 1 {
			t.Errorf("events %q", got)
		}
	})
}

func FuzzCacheFile(f *testing.F) {
	c := savedCache{Names: []savedName{{Name: host, Parts: map[string]savedAnswers{"a": {Source: "x", TTL: time.Minute}}}}}
	good, err := c.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, false)
	f.Add([]byte(`{"names":[{"name":"a.b","parts":{"a":{"addrs":["192.0.2.1"],"source":"s","fetched":"2001-01-01T00:00:00Z","ttl":60000000000}}}]}`), true)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal { // past the checksum
			b = sealed(b)
		}
		saved, err := decodeCache(b)
		if err != nil {
			return
		}
		r, err := New(Config{HostsFile: dir + "/hosts", ResolvConf: dir + "/resolv.conf", MaxEntries: 50})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.restore(saved)
		if len(r.entries) > 50 {
			t.Fatalf("%d entries", len(r.entries))
		}
		for key, e := range r.entries {
			v := e.view.Load()
			if !isName(key) || v == nil || v.err != nil || len(v.addrs) == 0 || len(v.addrs) > 2*maxRecords {
				t.Fatalf("entry %q: %+v", key, v)
			}
			if a := v.answer(r.now()); a.TTL > maxTTL || a.Age < 0 {
				t.Fatalf("answer %+v", a)
			}
		}
		if _, err := r.snapshot().encode(); err != nil {
			t.Fatalf("cannot be written again: %v", err)
		}
	})
}
