// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestHostsLookup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	write(t, path, "# top\n10.0.0.1 API.example alias # note\r\nbad x\nfe80::1%eth0 link\n2001:db8::1\tapi.example.\n10.0.0.1 api.example\n10.0.0.2 api.example")
	h := NewHosts(path)
	for name, want := range map[string]string{
		"api.EXAMPLE.": "[10.0.0.1 2001:db8::1 10.0.0.2]",
		"alias":        "[10.0.0.1]",
		"link":         "[fe80::1%eth0]",
		"x":            "[]",
		"note":         "[]",
	} {
		got, err := h.Lookup(name)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("Lookup(%q) = %v, %v, want %s", name, got, err, want)
		}
	}
}

func TestHostsSeesChangeWithinFiveSeconds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	synctest.Test(t, func(t *testing.T) {
		h := NewHosts(path)
		steps := []struct{ content, want string }{
			{"10.0.0.1 a\n", "[10.0.0.1]"},
			{"10.0.0.22 a\n", "[10.0.0.22]"},
			{"", "[]"},
		}
		if got, err := h.Lookup("a"); err != nil || len(got) != 0 {
			t.Fatalf("no file: %v, %v", got, err)
		}
		for _, s := range steps {
			write(t, path, s.content)
			time.Sleep(5 * time.Second) // the bubble's clock
			if got, err := h.Lookup("a"); err != nil || fmt.Sprint(got) != s.want {
				t.Errorf("after %q: %v, %v, want %s", s.content, got, err, s.want)
			}
		}
	})
}

func TestHostsKeepsLastGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	write(t, path, "10.0.0.1 a\n")
	synctest.Test(t, func(t *testing.T) {
		h := NewHosts(path)
		if _, err := h.Lookup("a"); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, hostsMaxBytes+1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // the bubble's clock
		if got, err := h.Lookup("a"); err == nil || fmt.Sprint(got) != "[10.0.0.1]" {
			t.Errorf("too large: %v, %v, want the last good answer and an error", got, err)
		}
	})
}

func FuzzParseHosts(f *testing.F) {
	f.Add([]byte("127.0.0.1 localhost # x\n::1 localhost ip6-localhost\n"))
	f.Add([]byte("\x00 \xff\n::ffff:1.2.3.4 a."))
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, addrs := range parseHosts(b) {
			if name == "" || len(addrs) == 0 {
				t.Fatalf("empty entry %q %v", name, addrs)
			}
			for _, a := range addrs {
				if !a.IsValid() || a.Is4In6() {
					t.Fatalf("%q has address %v", name, a)
				}
			}
		}
	})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
