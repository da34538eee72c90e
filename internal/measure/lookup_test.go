// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http/httptrace"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// nameServer starts dnsmasq with two names on loopback and returns its port.
func nameServer(t *testing.T) string {
	t.Helper()
	path := testenv.Need(t, "dnsmasq")
	ports := testenv.FreePorts(t, 1)
	port := strconv.Itoa(ports[0])
	cmd := exec.Command(path, "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file", "--user=root",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--port="+port,
		"--host-record=model.test,127.0.0.1,::1", "--host-record=other.test,127.0.0.9")
	testenv.Run(t, cmd, ports...)
	return port
}

func TestCompareLookups(t *testing.T) {
	port := nameServer(t)
	resolvers, err := ParseResolvers("udp://127.0.0.1:"+port+", tcp://127.0.0.1:"+port+",tcp://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = CloseResolvers(resolvers) }()
	rounds := 0
	l := CompareLookups(t.Context(), "model.test", resolvers, 5, func() { rounds++ })
	want := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}
	for i, s := range l.Resolvers {
		failed := i == 2
		if s.Lookups != 5 || rounds != 5 || failed != (s.Failed["refused"] == 5) || !failed && (!slices.Equal(s.Addresses, want) || s.First == 0 || s.Took.Len() != 4) {
			t.Errorf("%s: %+v after %d rounds", s.Name, s, rounds)
		}
	}
	var b bytes.Buffer
	if err := WriteLookups(&b, l); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"lookups of model.test, ms", "0 of 5", "2 addresses", "the same", "5 of 5", "5 failed: refused"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	raw, err := json.Marshal(l)
	if err != nil || !strings.Contains(string(raw), `"addresses":["127.0.0.1","::1"]`) {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestAnswersThatDifferAreNamed(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	l := &Lookups{Host: "model.test"}
	for _, addrs := range [][]netip.Addr{{a, b}, {b}} {
		s := &LookupSummary{Name: "r", Failed: map[string]int{}}
		s.add(addrs, nil, time.Millisecond)
		l.Resolvers = append(l.Resolvers, s)
	}
	var out bytes.Buffer
	if err := WriteLookups(&out, l); err != nil || !strings.Contains(out.String(), "another one: 1 addresses, 1 of them in common") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// A name that only the resolver knows is reached through it, and its lookup is a
// phase of the call.
func TestCallsUseTheResolver(t *testing.T) {
	port := nameServer(t)
	resolvers, err := ParseResolvers("udp://127.0.0.1:"+port, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = CloseResolvers(resolvers) }()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	_, at, _ := net.SplitHostPort(ln.Addr().String())
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	dial := dialResolved(resolvers[0].Lookup, (&net.Dialer{}).DialContext)
	tr := newTrace()
	c, err := dial(httptrace.WithClientTrace(t.Context(), tr.hooks()), "tcp", net.JoinHostPort("model.test", at))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if !tr.dns.done || !tr.connect.done || tr.dns.to > tr.connect.from {
		t.Errorf("lookup %+v, then connect %+v", tr.dns, tr.connect)
	}
	if _, err := dial(t.Context(), "tcp", net.JoinHostPort("unknown.test", at)); err == nil || !strings.Contains(err.Error(), "answers with code 5") {
		t.Errorf("unknown name: %v", err)
	}
}

func TestParseResolversRefuses(t *testing.T) {
	for _, bad := range []string{"", "system,", "doh", "ftp://x", "udp://"} {
		if r, err := ParseResolvers(bad, nil); err == nil {
			t.Errorf("%q gives %d resolvers", bad, len(r))
		}
	}
	r, err := ParseResolvers("system,quad9", nil)
	if err != nil || len(r) != 2 || r[0].Name != "system" || r[1].Name != "quad9" {
		t.Errorf("%v, %v", r, err)
	}
}
