// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"errors"
	"strings"
	"testing"
)

func TestAHostHasOneSpelling(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a" // 253
	for _, tt := range []struct{ in, want string }{
		{"api.example", "api.example"},
		{"API.Example.", "api.example"},
		{"localhost", "localhost"},
		{"bücher.example", "xn--bcher-kva.example"},
		{"BÜCHER.example", "xn--bcher-kva.example"},
		{"XN--bcher-KVA.example", "xn--bcher-kva.example"},
		{"ａｐｉ.example", "api.example"}, // full width
		{"faß.example", "xn--fa-hia.example"},
		{"例え。example", "xn--r8jz45g.example"}, // an ideographic full stop
		{"r3---sn-x.example", "r3---sn-x.example"},
		{"under_score.example", "under_score.example"},
		{"127.0.0.1", "127.0.0.1"},
		{"[2001:DB8::0:1]", "2001:db8::1"},
		{"::1", "::1"},
		{"::ffff:192.0.2.1", "192.0.2.1"},
		{long, long},
		{"", ""}, {".", ""}, {"..", ""}, {"a..b", ""}, {".a", ""},
		{"*.example", ""}, {"*", ""}, {"a*.example", ""},
		{"a.example:443", ""}, {"[::1]:443", ""}, {"fe80::1%eth0", ""},
		{"a b", ""}, {"a/b", ""}, {"a\x00b", ""}, {"a@b", ""}, {"-a.example", ""}, {"a-.example", ""},
		{"1.2.3", ""}, {"0x7f.1", ""}, {"127.1", ""}, {"a.0x7f", ""}, {"256.1.1.1", ""},
		{long + ".a", ""}, {strings.Repeat("a", 64) + ".example", ""},
		{"\xff.example", ""}, {"＊.example", ""}, {"a\u202e.example", ""},
	} {
		got, err := Name(tt.in)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("Name(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("Name(%q): %v does not match ErrInvalid", tt.in, err)
		}
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"api.example", "BÜCHER.example.", "[::1]", "1.2.3.4", "*.a", "a\u3002b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		name, err := Name(host)
		if err != nil {
			return
		}
		if again, err := Name(name); again != name || err != nil {
			t.Errorf("Name(%q) = %q, and of that %q, %v", host, name, again, err)
		}
	})
}
