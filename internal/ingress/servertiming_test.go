// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestServerTiming: answers say where their time went if that is wanted, in a trailer what
// is known at the end only, beside what the upstream says; else not a byte more.
func TestServerTiming(t *testing.T) {
	answer := "HTTP/1.1 200 OK\nServer-Timing: db;dur=1\nTransfer-Encoding: chunked\n\n2\nok\n0\n\n"
	for _, on := range []bool{false, true} {
		for _, te := range []bool{false, true} {
			at := testenv.ServeRaw(t, func(c *testenv.Raw) { c.Head(); c.Send(answer) })
			r := newRig(t, at, func(tab *Table, _ *Upstream) { tab.ServerTiming = on })
			c := r.dial()
			request := "GET /up/x HTTP/1.1\nHost: " + r.addr + "\nConnection: close"
			if te {
				request += ", TE\nTE: trailers"
			}
			c.Send(request + "\n\n")
			head := c.Head()
			rest, err := c.Rest()
			if err != nil {
				t.Error(err)
			}
			if !strings.Contains(head, "Server-Timing: db;dur=1\n") {
				t.Errorf("the upstream's own is missing:\n%s", head)
			}
			if strings.Contains(head, "warmwire-send;dur=") != on || strings.Contains(head, "warmwire-app") {
				t.Errorf("on %v:\n%s", on, head)
			}
			if strings.Contains(rest, "Server-Timing: ") != (on && te) || strings.Contains(rest, "warmwire-app;dur=") != (on && te) {
				t.Errorf("on %v, trailers %v: %q", on, te, rest)
			}
		}
	}
}
