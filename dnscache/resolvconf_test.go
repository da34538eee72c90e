// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"fmt"
	"testing"
	"time"
)

func TestParseResolvConf(t *testing.T) {
	for in, want := range map[string]string{
		"": "{[127.0.0.1] [] 1 5s 2 false}",
		"nameserver 127.0.0.53\noptions edns0 rotate ndots:5 timeout:2 attempts:3\nsearch Corp.example. lan\n": "{[127.0.0.53] [corp.example lan] 5 2s 3 true}",
		"search a b\ndomain c\n": "{[127.0.0.1] [c] 1 5s 2 false}",
		"; nameserver 1.1.1.1\nnameserver fe80::1%eth0\nnameserver x\nsearch .\r\n":                                                  "{[fe80::1%eth0] [] 1 5s 2 false}",
		"nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 10.0.0.4\noptions ndots:99 timeout:0 attempts:99": "{[10.0.0.1 10.0.0.2 10.0.0.3] [] 15 1s 5 false}",
		"options ndots:x ndots timeout:-4": "{[127.0.0.1] [] 1 1s 2 false}",
	} {
		if got := fmt.Sprint(ParseResolvConf([]byte(in))); got != want {
			t.Errorf("%q = %s, want %s", in, got, want)
		}
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 127.0.0.53\nsearch a b\noptions ndots:5 rotate\n"))
	f.Add([]byte("options timeout:99999999999999999999\ndomain .\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := ParseResolvConf(b)
		if n := len(c.Nameservers); n < 1 || n > 3 || len(c.Search) > 32 {
			t.Fatalf("out of bounds: %+v", c)
		}
		if c.Ndots < 0 || c.Ndots > 15 || c.Attempts < 1 || c.Attempts > 5 || c.Timeout < time.Second || c.Timeout > 30*time.Second {
			t.Fatalf("out of bounds: %+v", c)
		}
	})
}

func TestCandidates(t *testing.T) {
	c := ResolvConf{Ndots: 2, Search: []string{"corp.example", "lan"}}
	for in, want := range map[string]string{
		"Db":        "[db.corp.example db.lan db]",
		"db.":       "[db]",
		"a.b":       "[a.b a.b.corp.example a.b.lan]",
		"a.b.c":     "[a.b.c]",
		"api.test.": "[api.test]",
	} {
		if got := fmt.Sprint(c.Candidates(in)); got != want {
			t.Errorf("Candidates(%q) = %s, want %s", in, got, want)
		}
	}
}
