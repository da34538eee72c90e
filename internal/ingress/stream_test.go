// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/testenv"
)

// TestInterceptedInsideHTTP2 makes tunnels as streams of an HTTP/2 connection: a listed
// host is intercepted there as well, whatever is spoken inside.
func TestInterceptedInsideHTTP2(t *testing.T) {
	node := testenv.Need(t, "node")
	for protocol, want := range map[string]InterceptResult{"http/1.1": Intercepted, "h2": Intercepted, "clear": InterceptPlain} {
		t.Run(protocol, func(t *testing.T) {
			r := newTLSRig(t, func(_ *Config, _ *Table, u *Upstream) { u.SetHeaders = http.Header{"Authorization": {"injected"}} })
			out := program(t, node, "testdata/tunnel.mjs", r.addr, host, r.ca, protocol)
			if out != "connect 200\n200 question\n200 question\nend 0\n" {
				t.Errorf("node printed %q", out)
			}
			for range 2 {
				if rec := r.record(); rec.Mode != ModeIntercept || rec.Upstream != "up" || rec.Outcome != OutcomeOK {
					t.Errorf("record %+v", rec)
				}
			}
			r.result(want)
			if n := r.server.Running(); n != 0 {
				t.Errorf("%d still run", n)
			}
		})
	}
}

// TestBlindInsideHTTP2 is what becomes of hosts that are not listed or left alone: they show
// their own certificate, and one that cannot be reached looks broken.
func TestBlindInsideHTTP2(t *testing.T) {
	node := testenv.Need(t, "node")
	r := newTLSRig(t, func(_ *Config, tab *Table, _ *Upstream) {
		dial := tab.Forward.Dial
		tab.Forward.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, secondHost) {
				return nil, errors.New("dial: refused")
			}
			return dial(ctx, network, addr)
		}
	})
	theirs := filepath.Join(t.TempDir(), "theirs.pem")
	if err := ca.WritePublic(theirs, ca.PEM(r.site.Certificate())); err != nil {
		t.Fatal(err)
	}
	const talked = "connect 200\n200 question\n200 question\nend 0\n"
	if out := program(t, node, "testdata/tunnel.mjs", r.addr, "sub."+host, theirs, "h2"); out != talked {
		t.Errorf("an unlisted host: %q", out)
	}
	if len(r.results) != 0 {
		t.Errorf("counted as %s", <-r.results)
	}
	r.server.intercept.exceptions.WantsCertificate(host, time.Now())
	if out := program(t, node, "testdata/tunnel.mjs", r.addr, host, theirs, "h2"); out != talked {
		t.Errorf("a host that is left alone: %q", out)
	}
	r.result(InterceptLearned)
	if out := program(t, node, "testdata/tunnel.mjs", r.addr, secondHost, theirs, "odd"); !strings.HasPrefix(out, "connect 200\n") || !strings.Contains(out, "stream ") {
		t.Errorf("a host that cannot be reached: %q", out)
	}
	r.result(InterceptALPN)
}
