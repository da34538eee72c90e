// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

func TestValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		want string // part of the error; "" means none
	}{
		"zero":                 {Config{}, ""},
		"all":                  {Config{Mode: ModeSystemFirst, Resolvers: []string{"Cloudflare", "tls://9.9.9.9"}, SystemDomains: []string{".corp.example"}}, ""},
		"mode":                 {Config{Mode: "fast"}, `dns.mode "fast"`},
		"nothing to ask first": {Config{Mode: ModeResolversFirst}, "dns.mode resolvers_first needs dns.resolvers"},
		"nothing to ask":       {Config{Mode: ModeResolversOnly}, "dns.mode resolvers_only needs dns.resolvers"},
		"two orders":           {Config{Mode: ModeSystemFirst, Resolvers: []string{"system"}}, "leave one of them out"},
		"resolver":             {Config{Resolvers: []string{"http://1.1.1.1/"}}, "dns.resolvers"},
		"bootstrap":            {Config{Bootstrap: []netip.Addr{netip.IPv4Unspecified()}}, "dns.bootstrap"},
		"domain":               {Config{SystemDomains: []string{"a b"}}, "dns.system_domains"},
		"min_ttl":              {Config{MinTTL: -1}, "dns.min_ttl"},
		"min_ttl long":         {Config{MinTTL: 25 * time.Hour}, "dns.min_ttl"},
		"entries":              {Config{MaxEntries: -1}, "MaxEntries"},
	} {
		err := tt.cfg.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if _, newErr := New(Config{Mode: tt.cfg.Mode, Resolvers: tt.cfg.Resolvers, HostsFile: "none", ResolvConf: "none"}); tt.want == "" && newErr != nil {
			t.Errorf("%s: New: %v", name, newErr)
		}
	}
}

func TestAFlightBeginsAnewOnAnotherNetwork(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"told":        func(b *bench) { b.NetworkChanged() },
		"resolv.conf": func(b *bench) { writeFile(b.t, b.path("resolv.conf"), "nameserver 10.0.0.54\n") },
	} {
		t.Run(name, func(t *testing.T) {
			sys, other := addrOf("192.0.2.66", 4800*ms), addrOf("192.0.2.1", ms)
			bubble(t, Config{}, map[string]*fake{systemX: sys, "udp://10.0.0.54": other}, func(t *testing.T, b *bench) {
				var looking sync.WaitGroup
				looking.Go(func() { b.want(host, "[192.0.2.1]") })
				synctest.Wait()
				change(b)
				sys.set(func(f *fake) { f.zone = other.zone })
				looking.Wait()
			})
		})
	}
}

func TestSystemDomainsBesideResolversOnly(t *testing.T) {
	sys, one := addrOf("192.0.2.53", ms), addrOf("192.0.2.1", ms)
	cfg := Config{Mode: ModeResolversOnly, Resolvers: []string{oneX + "/q"}, SystemDomains: []string{"corp.example"}}
	bubble(t, cfg, map[string]*fake{systemX: sys, oneX: one}, func(t *testing.T, b *bench) {
		b.want("llm.corp.example", "[192.0.2.53]")
		b.want(host, "[192.0.2.1]")
		b.want("printer.local", "error") // nobody may be asked
		sys.questions()
		one.set(func(f *fake) { f.err = &exchange.Error{Kind: exchange.KindUnreachable, Err: errors.New("no route")} })
		b.want("b.example.com", "error")
		b.wantQuestions(sys)
	})
}

func TestSearchSuffixesAreOwnNames(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/resolv.conf", "nameserver 10.0.0.53\nsearch corp.example com\n")
	sys, one := addrOf("192.0.2.53", ms), addrOf("192.0.2.1", ms)
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, Config{Resolvers: []string{oneX + "/q"}}, map[string]*fake{systemX: sys, oneX: one})
		b.want("llm.corp.example", "[192.0.2.53]")
		b.want(host, "[192.0.2.1]")
	})
}

func TestCloseEndsLookups(t *testing.T) {
	bubble(t, Config{}, nil, func(t *testing.T, b *bench) {
		var looking sync.WaitGroup
		looking.Go(func() { b.wantIn(sec, host, "error") })
		b.pass(sec)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		looking.Wait()
		b.wantIn(0, "other.example.com", "error")
	})
}

func TestAHostsFileThatCannotBeReadIsToldOnce(t *testing.T) {
	bubble(t, Config{}, map[string]*fake{systemX: addrOf("192.0.2.1", ms)}, func(t *testing.T, b *bench) {
		if err := os.Truncate(b.path("hosts"), hostsMaxBytes+1); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			b.want(host, "[192.0.2.1]")
			b.pass(3 * sec)
		}
		if got := b.events(); !slices.Equal(got, []string{"hosts_file hosts"}) {
			t.Errorf("events %q", got)
		}
	})
}

func TestKeptNamesAreLookedForUntilTheyAreThere(t *testing.T) {
	sys := &fake{delay: ms}
	bubble(t, Config{Resolvers: []string{"system", oneX + "/q"}}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.Keep([]string{host, "localhost", "192.0.2.1", ""})
		b.pass(10 * sec)
		sys.set(func(f *fake) { f.rcode = map[string]int{"": exchange.RCodeServFail} })
		b.pass(60 * sec)
		sys.set(func(f *fake) { f.rcode, f.zone = nil, map[string][]string{host: {"60 A 192.0.2.1"}} })
		b.pass(31 * sec)
		b.wantIn(0, host, "[192.0.2.1]")
		b.Keep(nil)
		sys.questions()
		b.pass(time.Hour)
		if got := sys.questions(); len(got) > 3 { // it has been used once
			t.Errorf("asked %q of a name that is kept no more", got)
		}
	})
}

func TestTheSystemsOwnWay(t *testing.T) {
	n := newNative()
	a, err := n.Exchange(t.Context(), exchange.Question{Name: "localhost", Type: exchange.TypeA})
	if err != nil || len(a.Records) != 1 || a.Records[0].Addr != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("localhost: %+v, %v", a, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = n.Exchange(ctx, exchange.Question{Name: "a.example.com", Type: exchange.TypeA}); err == nil {
		t.Error("no error without time")
	}
	if a, err = n.Exchange(t.Context(), exchange.Question{Name: "a.example.com", Type: exchange.TypeHTTPS}); err != nil || len(a.Records) != 0 {
		t.Errorf("HTTPS: %+v, %v", a, err)
	}
	_ = n.Close()
}
