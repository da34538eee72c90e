// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/reach"
)

func TestWhatIsInTheWayIsFound(t *testing.T) {
	good, bad := &reach.Family{Addresses: 1, Connected: true}, &reach.Family{Addresses: 1, Error: "no route"}
	skew := func(s float64) *float64 { return &s }
	for name, tt := range map[string]struct {
		t    target
		r    reach.Report
		want string
	}{
		"as it should be":   {target{tls: true, h3: true}, reach.Report{IPv4: good, IPv6: good, QUIC: true, Skew: skew(1)}, ""},
		"no IPv6":           {target{tls: true}, reach.Report{IPv4: good, IPv6: bad}, "note:ipv6_unreachable"},
		"no IPv4":           {target{tls: true}, reach.Report{IPv4: bad, IPv6: good}, "warning:ipv4_unreachable"},
		"nothing":           {target{}, reach.Report{IPv4: bad, IPv6: bad}, "error:unreachable"},
		"nothing, with TLS": {target{tls: true}, reach.Report{IPv4: bad}, ""},
		"UDP is dropped":    {target{tls: true, h3: true}, reach.Report{IPv4: good}, "warning:quic_silent"},
		"a login page":      {target{tls: true}, reach.Report{IPv4: good, Portal: "http://login.example/"}, "error:login_page"},
		"a slow clock":      {target{tls: true}, reach.Report{IPv4: good, Skew: skew(-40)}, "warning:clock"},
		"a wrong clock":     {target{tls: true}, reach.Report{IPv4: good, Skew: skew(3600)}, "error:clock"},
	} {
		var got []string
		for _, f := range reachFindings(tt.t, tt.r) {
			got = append(got, string(f.Level)+":"+f.Code)
		}
		if strings.Join(got, ",") != tt.want {
			t.Errorf("%s: %v, want %s", name, got, tt.want)
		}
	}
}
