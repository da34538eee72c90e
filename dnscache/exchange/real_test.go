// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/warmwire/warmwire/internal/testenv"
)

// A resolver is a program that is not ours, with a zone of ours.
type resolver struct {
	udp, tls, https string // specs; empty: it does not speak it
	roots           Config
	stop            func()
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// certificate writes the files that a server needs.
func certificate(t *testing.T, dir string) (id identity, cert, key string) {
	t.Helper()
	id = newIdentity(t, "dns.example", "127.0.0.1")
	cert = write(t, dir, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: id.pem[0]})))
	key = write(t, dir, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: id.pem[1]})))
	return id, cert, key
}

// zone has what an upstream's zone has, and one name with too many addresses
// for a datagram.
func zone() string {
	var b strings.Builder
	b.WriteString(`$ORIGIN zone.example.
@ 900 SOA ns root 1 2 3 4 60
@ 900 NS ns
ns 900 A 127.0.0.1
api 300 CNAME edge
edge 60 A 192.0.2.1
edge 60 AAAA 2001:db8::1
edge 60 HTTPS 1 . alpn="h3,h2" port=8443 ipv4hint=192.0.2.1 ipv6hint=2001:db8::1 ech="AAEC"
`)
	for i := range 150 {
		fmt.Fprintf(&b, "many 60 A 192.0.2.%d\n", i)
	}
	return b.String()
}

func startUnbound(t *testing.T) resolver {
	program := testenv.Need(t, "unbound")
	dir := t.TempDir()
	id, cert, key := certificate(t, dir)
	ports := testenv.FreePorts(t, 3)
	write(t, dir, "zone", zone())
	config := write(t, dir, "unbound.conf", fmt.Sprintf(`server:
  directory: "%[1]s"
  chroot: ""
  username: ""
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  num-threads: 1
  module-config: "iterator"
  interface: 127.0.0.1@%[2]d
  interface: 127.0.0.1@%[3]d
  interface: 127.0.0.1@%[4]d
  tls-port: %[3]d
  https-port: %[4]d
  tls-service-pem: "%[5]s"
  tls-service-key: "%[6]s"
  ede: yes
  edns-tcp-keepalive: yes
  edns-tcp-keepalive-timeout: 30000
auth-zone:
  name: "zone.example"
  zonefile: "zone"
  for-downstream: no
  for-upstream: yes
  fallback-enabled: no
remote-control:
  control-enable: no
`, dir, ports[0], ports[1], ports[2], cert, key))
	stop := testenv.Run(t, exec.Command(program, "-d", "-p", "-c", config), ports...)
	return resolver{
		udp:   fmt.Sprintf("udp://127.0.0.1:%d", ports[0]),
		tls:   fmt.Sprintf("tls://dns.example@127.0.0.1:%d", ports[1]),
		https: fmt.Sprintf("https://dns.example@127.0.0.1:%d/dns-query", ports[2]),
		roots: Config{Roots: id.roots, Retransmit: 500 * time.Millisecond},
		stop:  stop,
	}
}

// startKnot starts a Knot Resolver in front of an unbound, which has the zone.
func startKnot(t *testing.T) resolver {
	program := testenv.Need(t, "kresd")
	behind := strings.TrimPrefix(startUnbound(t).udp, "udp://")
	dir := t.TempDir()
	id, cert, key := certificate(t, dir)
	ports := testenv.FreePorts(t, 3)
	config := write(t, dir, "kresd.conf", fmt.Sprintf(`
net.listen('127.0.0.1', %[1]d, { kind = 'dns' })
net.listen('127.0.0.1', %[2]d, { kind = 'tls' })
net.listen('127.0.0.1', %[3]d, { kind = 'doh2' })
net.tls('%[4]s', '%[5]s')
modules.unload('ta_update')
modules.unload('priming')
trust_anchors.remove('.')
policy.add(policy.all(policy.STUB('%[6]s')))
`, ports[0], ports[1], ports[2], cert, key, strings.Replace(behind, ":", "@", 1)))
	stop := testenv.Run(t, exec.Command(program, "-n", "-c", config, dir), ports...)
	return resolver{
		udp:   fmt.Sprintf("udp://127.0.0.1:%d", ports[0]),
		tls:   fmt.Sprintf("tls://dns.example@127.0.0.1:%d", ports[1]),
		https: fmt.Sprintf("https://dns.example@127.0.0.1:%d/dns-query", ports[2]),
		roots: Config{Roots: id.roots, Retransmit: 500 * time.Millisecond},
		stop:  stop,
	}
}

func startDnsmasq(t *testing.T) resolver {
	program := testenv.Need(t, "dnsmasq")
	port := testenv.FreePorts(t, 1)
	args := []string{
		"--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=", "--no-resolv", "--no-hosts",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--port=" + strconv.Itoa(port[0]), "--local=/zone.example/",
		"--cname=api.zone.example,edge.zone.example,300",
		"--host-record=edge.zone.example,192.0.2.1,2001:db8::1,60",
	}
	for i := range 150 {
		args = append(args, fmt.Sprintf("--host-record=many.zone.example,192.0.2.%d,60", i))
	}
	stop := testenv.Run(t, exec.Command(program, args...), port...)
	return resolver{udp: fmt.Sprintf("udp://127.0.0.1:%d", port[0]), stop: stop}
}

// ways returns every spec that a resolver can be asked by.
func (r resolver) ways() map[string]string {
	ways := map[string]string{"udp": r.udp, "tcp": "tcp" + strings.TrimPrefix(r.udp, "udp")}
	if r.tls != "" {
		ways["tls"] = r.tls
	}
	if r.https != "" {
		ways["https, POST"] = r.https
		ways["https, GET"] = r.https + "{?dns}"
	}
	return ways
}

func TestRealResolversAnswer(t *testing.T) {
	programs := map[string]func(*testing.T) resolver{"unbound": startUnbound, "knot-resolver": startKnot, "dnsmasq": startDnsmasq}
	for name, start := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			for way, spec := range r.ways() {
				t.Run(way, func(t *testing.T) {
					x := open(t, spec, r.roots)
					checkAddresses(t, x)
					checkLongAnswer(t, x)
					checkNoName(t, x, name == "dnsmasq")
					if name != "dnsmasq" {
						checkService(t, x)
					}
					checkMany(t, x, atOnce(name, way))
				})
			}
		})
	}
}

func checkAddresses(t *testing.T, x Exchanger) {
	t.Helper()
	for qtype, addr := range map[uint16]string{TypeA: "192.0.2.1", TypeAAAA: "2001:db8::1"} {
		got, err := x.Exchange(t.Context(), Question{Name: "Api.Zone.Example.", Type: qtype})
		if err != nil {
			t.Errorf("type %d: %v", qtype, err)
			continue
		}
		for i := range got.Records { // a cache counts them down
			if ttl := got.Records[i].TTL; ttl <= 0 || ttl > 300*time.Second {
				t.Errorf("TTL %v", ttl)
			}
			got.Records[i].TTL = 0
		}
		want := []Record{
			{Name: "api.zone.example", Type: TypeCNAME, Target: "edge.zone.example"},
			{Name: "edge.zone.example", Type: qtype, Addr: netip.MustParseAddr(addr)},
		}
		if diff := cmp.Diff(want, got.Records, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("type %d (-want +got):\n%s", qtype, diff)
		}
	}
}

func checkLongAnswer(t *testing.T, x Exchanger) {
	t.Helper()
	got, err := x.Exchange(t.Context(), Question{Name: "many.zone.example", Type: TypeA})
	if err != nil || len(got.Records) != 150 {
		t.Errorf("%d of 150 addresses, %v", len(got.Records), err)
	}
}

// checkNoName asks for a name that is not there; without is for a resolver that
// sends no SOA record.
func checkNoName(t *testing.T, x Exchanger, without bool) {
	t.Helper()
	got, err := x.Exchange(t.Context(), Question{Name: "none.zone.example", Type: TypeA})
	if err != nil || got.RCode != RCodeNXDomain || len(got.Records) != 0 {
		t.Errorf("no name: %+v, %v", got, err)
	}
	if ttl, ok := got.TTL(TypeA); ok == without || ttl > 60*time.Second {
		t.Errorf("no name: TTL %v, %v", ttl, ok)
	}
}

func checkService(t *testing.T, x Exchanger) {
	t.Helper()
	got, err := x.Exchange(t.Context(), Question{Name: "edge.zone.example", Type: TypeHTTPS})
	if err != nil || len(got.Records) != 1 {
		t.Errorf("HTTPS record: %+v, %v", got, err)
		return
	}
	want := &Service{Priority: 1, Target: "edge.zone.example", ALPN: []string{"h3", "h2"}, Port: 8443,
		IPv4Hints: addrList("192.0.2.1"), IPv6Hints: addrList("2001:db8::1"), ECH: []byte{0, 1, 2}}
	if diff := cmp.Diff(want, got.Records[0].Service, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("HTTPS record (-want +got):\n%s", diff)
	}
}

// atOnce is how many questions a resolver bears at once. Knot Resolver 5.6 loses its place in
// what it reads over HTTPS when several requests come together, and then ends the connection
// for a frame that nobody sent: FRAME_SIZE_ERROR, or DATA on stream 0.
func atOnce(resolver, way string) int {
	if resolver == "knot-resolver" && strings.HasPrefix(way, "https") {
		return 1
	}
	return 60
}

func checkMany(t *testing.T, x Exchanger, atOnce int) {
	t.Helper()
	var running sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i := range 60 {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			name := []string{"edge.zone.example", "api.zone.example"}[i%2]
			got, err := x.Exchange(t.Context(), Question{Name: name, Type: TypeA})
			if err != nil || !slices.ContainsFunc(got.Records, func(r Record) bool { return r.Addr == netip.MustParseAddr("192.0.2.1") }) {
				t.Errorf("at once: %+v, %v", got, err)
			}
		})
	}
	running.Wait()
}

// One connection carries everything, and a session is resumed when it is gone.
func TestRealResolversKeepOneConnection(t *testing.T) {
	programs := map[string]func(*testing.T) resolver{"unbound": startUnbound, "knot-resolver": startKnot}
	for name, start := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			for way, spec := range r.ways() {
				if way == "udp" || name == "knot-resolver" && way == "https, GET" {
					// Knot Resolver 5.6 loses its place in the frames when GETs
					// arrive together, and closes with GOAWAY. They are answered
					// all the same, which the test above shows.
					continue
				}
				t.Run(way, func(t *testing.T) {
					cfg := r.roots
					cfg.Sessions = tls.NewLRUClientSessionCache(4)
					var mu sync.Mutex
					var conns []net.Conn
					cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
						conn, err := new(net.Dialer).DialContext(ctx, network, addr)
						mu.Lock()
						defer mu.Unlock()
						conns = append(conns, conn)
						return conn, err
					}
					x := open(t, spec, cfg)
					for range 3 {
						checkAddresses(t, x)
						checkMany(t, x, atOnce(name, way))
					}
					mu.Lock()
					if len(conns) != 1 {
						t.Errorf("%d connections, want 1", len(conns))
					}
					_ = conns[0].Close() // under the exchanger's feet
					mu.Unlock()
					checkAddresses(t, x)
				})
			}
		})
	}
}

// A resolver that went away is refused at once, and used again once it is back.
func TestRealResolverGone(t *testing.T) {
	r := startUnbound(t)
	for way, spec := range r.ways() {
		x := open(t, spec, r.roots)
		checkAddresses(t, x)
		defer func() {
			_, err := x.Exchange(t.Context(), Question{Name: "api.zone.example", Type: TypeA})
			if err == nil {
				t.Errorf("%s: a stopped resolver answered", way)
				return
			}
			wantKind(t, err, KindRefused)
		}()
	}
	r.stop()
}
