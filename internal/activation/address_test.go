// SPDX-License-Identifier: Apache-2.0

package activation

import (
	"net"
	"testing"
)

func TestMatches(t *testing.T) {
	tcp := func(s string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	tests := []struct {
		address string
		addr    net.Addr
		want    bool
	}{
		{"127.0.0.1:8484", tcp("127.0.0.1:8484"), true},
		{"localhost:8484", tcp("127.0.0.1:8484"), true},
		{"127.0.0.1:0", tcp("127.0.0.1:8484"), true},
		{"127.0.0.1:8484", tcp("127.0.0.1:8485"), false},
		{"127.0.0.1:8484", tcp("127.0.0.2:8484"), false},
		{"127.0.0.1:8484", tcp("0.0.0.0:8484"), false},
		{"0.0.0.0:8484", tcp("127.0.0.1:8484"), false},
		{":8484", tcp("[::]:8484"), true},
		{":8484", tcp("0.0.0.0:8484"), true},
		{":8484", tcp("127.0.0.1:8484"), false},
		{"[::1]:8484", tcp("[::1]:8484"), true},
		{"127.0.0.1:8484", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8484}, true},
		{"unix:/run/w.sock", &net.UnixAddr{Name: "/run/w.sock", Net: "unix"}, true},
		{"unix:/run/v.sock", &net.UnixAddr{Name: "/run/w.sock", Net: "unix"}, false},
		{"127.0.0.1:8484", &net.UnixAddr{Name: "127.0.0.1:8484", Net: "unix"}, false},
		{"unix:/run/w.sock", tcp("127.0.0.1:8484"), false},
		{"nonsense", tcp("127.0.0.1:8484"), false},
	}
	for _, tt := range tests {
		if got := matches(tt.address, tt.addr); got != tt.want {
			t.Errorf("matches(%q, %v) = %v, want %v", tt.address, tt.addr, got, tt.want)
		}
	}
}
