// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// certificate writes a certificate of 127.0.0.1 and its key.
func certificate(t *testing.T, dir string) (roots func() *x509.CertPool, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"dns.example"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	return func() *x509.CertPool { return pool }, cert, key
}

// A realResolver is a program that is not ours, with a zone of ours.
type realResolver struct {
	ways  []string
	udp   int // port
	roots func() *x509.CertPool
	stop  func()
}

const realHost = "api.zone.example"

// startUnbound has realHost at 192.0.2.<last> with a TTL of 2 s.
func startUnbound(t *testing.T, last int) realResolver {
	program := testenv.Need(t, "unbound")
	dir := t.TempDir()
	roots, cert, key := certificate(t, dir)
	ports := testenv.FreePorts(t, 3)
	writeFile(t, dir+"/zone", fmt.Sprintf(`$ORIGIN zone.example.
@ 900 SOA ns root 1 2 3 4 60
@ 900 NS ns
ns 900 A 127.0.0.1
api 300 CNAME edge
edge 2 A 192.0.2.%d
edge 2 AAAA 2001:db8::%[1]d
edge 2 HTTPS 1 . alpn="h3,h2" ech="AAEC"
`, last))
	writeFile(t, dir+"/unbound.conf", fmt.Sprintf(`server:
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
auth-zone:
  name: "zone.example"
  zonefile: "zone"
  for-downstream: no
  for-upstream: yes
  fallback-enabled: no
remote-control:
  control-enable: no
`, dir, ports[0], ports[1], ports[2], cert, key))
	stop := testenv.Run(t, exec.Command(program, "-d", "-p", "-c", dir+"/unbound.conf"), ports...)
	return realResolver{ways: ways(ports), udp: ports[0], roots: roots, stop: stop}
}

func ways(ports []int) []string {
	return []string{
		fmt.Sprintf("udp://127.0.0.1:%d", ports[0]), fmt.Sprintf("tcp://127.0.0.1:%d", ports[0]),
		fmt.Sprintf("tls://127.0.0.1:%d", ports[1]), fmt.Sprintf("https://127.0.0.1:%d/dns-query", ports[2]),
	}
}

// startKnot puts a Knot Resolver in front of an unbound.
func startKnot(t *testing.T, last int) realResolver {
	program := testenv.Need(t, "kresd")
	behind := startUnbound(t, last)
	dir := t.TempDir()
	roots, cert, key := certificate(t, dir)
	ports := testenv.FreePorts(t, 3)
	writeFile(t, dir+"/kresd.conf", fmt.Sprintf(`
net.listen('127.0.0.1', %[1]d, { kind = 'dns' })
net.listen('127.0.0.1', %[2]d, { kind = 'tls' })
net.listen('127.0.0.1', %[3]d, { kind = 'doh2' })
net.tls('%[4]s', '%[5]s')
modules.unload('ta_update')
modules.unload('priming')
trust_anchors.remove('.')
policy.add(policy.all(policy.STUB('127.0.0.1@%[6]d')))
`, ports[0], ports[1], ports[2], cert, key, behind.udp))
	stop := testenv.Run(t, exec.Command(program, "-n", "-c", dir+"/kresd.conf", dir), ports...)
	return realResolver{ways: ways(ports), udp: ports[0], roots: roots, stop: stop}
}

func startDnsmasq(t *testing.T, last int) realResolver {
	program := testenv.Need(t, "dnsmasq")
	port := testenv.FreePorts(t, 1)
	stop := testenv.Run(t, exec.Command(program,
		"--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=", "--no-resolv", "--no-hosts",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--port="+strconv.Itoa(port[0]), "--local=/zone.example/",
		"--cname=api.zone.example,edge.zone.example,300",
		fmt.Sprintf("--host-record=edge.zone.example,192.0.2.%d,2001:db8::%[1]d,2", last)), port...)
	return realResolver{ways: ways([]int{port[0], 0, 0})[:2], udp: port[0], stop: stop}
}

// open makes a Resolver that has nothing but the given resolvers, and runs it.
func open(t *testing.T, cfg Config) *Resolver {
	t.Helper()
	dir := t.TempDir()
	cfg.Mode, cfg.HostsFile, cfg.ResolvConf = ModeResolversOnly, dir+"/hosts", dir+"/resolv.conf"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = r.Close()
	})
	return r
}

// wantReal looks realHost up.
func wantReal(t *testing.T, r *Resolver, last int, services bool) Answer {
	t.Helper()
	a, err := r.Lookup(t.Context(), realHost)
	// One family does not wait long for the other, nor they for the HTTPS record:
	// on a busy machine these come after them.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for try := 0; err == nil && (len(a.Addrs) < 2 || services && len(a.Services) == 0) && try < 500; try++ {
		<-tick.C
		a, err = r.Lookup(t.Context(), realHost)
	}
	if want := fmt.Sprintf("[2001:db8::%d 192.0.2.%[1]d]", last); err != nil || fmt.Sprint(a.Addrs) != want {
		t.Fatalf("Lookup = %v, %v, want %s", a.Addrs, err, want)
	}
	if services && (len(a.Services) != 1 || !slices.Equal(a.Services[0].ALPN, []string{"h3", "h2"}) || len(a.Services[0].ECH) != 3) {
		t.Errorf("services %+v", a.Services)
	}
	return a
}

// A known name outlives its resolver, and its changes show.
func TestRealResolversAndTheirLoss(t *testing.T) {
	programs := map[string]func(*testing.T, int) realResolver{"unbound": startUnbound, "knot-resolver": startKnot, "dnsmasq": startDnsmasq}
	for name, begin := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := begin(t, 1)
			for _, way := range p.ways {
				t.Run(way[:strings.IndexByte(way, ':')], func(t *testing.T) {
					r := open(t, Config{Resolvers: []string{way}, Roots: p.roots})
					wantReal(t, r, 1, name != "dnsmasq")
					if _, err := r.Lookup(t.Context(), "none.zone.example"); err == nil {
						t.Error("a name that is not there was found")
					}
				})
			}
			r := open(t, Config{Resolvers: p.ways, Roots: p.roots})
			r.Keep([]string{realHost})
			wantReal(t, r, 1, name != "dnsmasq")
			p.stop()
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for a := (Answer{}); !a.Stale; <-tick.C {
				begun := time.Now()
				a = wantReal(t, r, 1, name != "dnsmasq")
				if took := time.Since(begun); took > time.Second {
					t.Errorf("a lookup without resolvers took %v", took)
				}
			}
		})
	}
}

// Compared over real ways, the one that lies is named.
func TestCompareNamesDifferences(t *testing.T) {
	one, lies := startUnbound(t, 1), startDnsmasq(t, 66)
	r := open(t, Config{Resolvers: append(one.ways, lies.ways[0]), Roots: one.roots})
	list, err := r.Compare(t.Context(), realHost)
	if err != nil || len(list) != 5 {
		t.Fatalf("%+v, %v", list, err)
	}
	for i, c := range list {
		want := "[2001:db8::1 192.0.2.1]"
		if i == 4 {
			want = "[2001:db8::66 192.0.2.66]"
		}
		if c.Err != nil || fmt.Sprint(c.Addrs) != want || c.Cold <= 0 || c.Warm <= 0 || (len(c.Notes) > 0) != (i == 4) {
			t.Errorf("%+v", c)
		}
	}
	list, err = r.Compare(t.Context(), "none.zone.example")
	if err != nil || list[0].Err == nil || len(list[0].Notes) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err = r.Compare(t.Context(), "no name"); err == nil {
		t.Error("no error for what is no name")
	}
}

// The name of a resolver is found by the bootstrap resolvers, and not by itself.
func TestBootstrapByRealResolver(t *testing.T) {
	one := startUnbound(t, 1)
	dir := t.TempDir()
	writeFile(t, dir+"/hosts", "")
	// A bootstrap resolver listens on port 53, which a test cannot have: dial
	// there leads to the program's port.
	var mu sync.Mutex
	var dialled []string
	cfg := Config{
		Mode: ModeResolversOnly, Resolvers: []string{strings.Replace(one.ways[2], "127.0.0.1", "edge.zone.example", 1)},
		Bootstrap: []netip.Addr{netip.MustParseAddr("192.0.2.53")}, HostsFile: dir + "/hosts", ResolvConf: dir + "/resolv.conf",
	}
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		dialled = append(dialled, address)
		mu.Unlock()
		if address == "192.0.2.53:53" {
			address = fmt.Sprintf("127.0.0.1:%d", one.udp)
		}
		return new(net.Dialer).DialContext(ctx, network, strings.Replace(address, "192.0.2.1", "127.0.0.1", 1))
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = r.Lookup(t.Context(), realHost)
	// The certificate is for another name: what matters is that it was found.
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Lookup: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(dialled, "192.0.2.53:53") || !slices.ContainsFunc(dialled, func(a string) bool { return strings.HasPrefix(a, "192.0.2.1:") }) {
		t.Errorf("dialled %q", dialled)
	}
}
