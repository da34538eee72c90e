// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func portOf(t *testing.T, a net.Addr) int {
	t.Helper()
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return int(p.Port())
}

func TestAHostThatIsAsItShouldBe(t *testing.T) {
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %v", r.Method, r.Header)
		}
	}))
	defer site.Close()
	port := portOf(t, site.Listener.Addr())
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Skipf("this port's UDP is another's: %v", err)
	}
	defer udp.Close()
	tr := &quic.Transport{Conn: udp}
	defer tr.Close()
	ln, err := tr.Listen(&tls.Config{Certificates: site.TLS.Certificates, NextProtos: []string{"h3"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	here := netip.MustParseAddr("127.0.0.1")
	r := Look(t.Context(), Config{Host: "api.test", Port: port, Addrs: []netip.Addr{here, netip.MustParseAddr("::1")}, TLS: true, PlainPort: 1, Timeout: 20 * time.Second})
	if r.IPv4 == nil || !r.IPv4.Connected || r.IPv6 == nil || r.IPv6.Connected || r.IPv6.Error == "" {
		t.Errorf("families: %+v, %+v", r.IPv4, r.IPv6)
	}
	if !r.QUIC {
		t.Error("a QUIC server answers, and it was not heard")
	}
	if r.Skew == nil || *r.Skew != 0 {
		t.Errorf("skew of one clock with itself: %v", r.Skew)
	}
	if r.Portal != "" {
		t.Errorf("portal %q", r.Portal)
	}
}

func TestPlantedFaults(t *testing.T) {
	var date, location string
	status := http.StatusOK
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if date != "" {
			w.Header().Set("Date", date)
		}
		if location != "" {
			w.Header().Set("Location", location)
		}
		w.WriteHeader(status)
	}))
	defer site.Close()
	port := portOf(t, site.Listener.Addr())
	cfg := Config{Host: "api.test", Port: port, PlainPort: port, Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Timeout: 20 * time.Second}

	now := time.Date(2026, 1, 2, 3, 4, 5, 6e8, time.UTC)
	cfg.Now = func() time.Time { return now }
	for theirs, want := range map[time.Duration]float64{0: 0, -10 * time.Minute: 599.6, 10 * time.Minute: -599.4} {
		date = now.Add(theirs).Format(http.TimeFormat)
		if r := Look(t.Context(), cfg); r.Skew == nil || *r.Skew < want-0.001 || *r.Skew > want+0.001 {
			t.Errorf("their clock is %v ahead: %v, want %v", theirs, r.Skew, want)
		}
	}
	date = "not a date"
	if r := Look(t.Context(), cfg); r.Skew != nil {
		t.Errorf("skew of no date: %v", *r.Skew)
	}

	for _, tt := range []struct {
		status         int
		location, want string
	}{
		{302, "http://login.hotel.example/start?mac=00:11", "http://login.hotel.example/start"},
		{511, "", "a page of this network"},
		{301, "https://api.test/", ""},
		{302, "https://www.api.test/home", ""},
		{302, "/relative", ""},
		{200, "http://login.hotel.example/", ""},
	} {
		status, location = tt.status, tt.location
		if r := Look(t.Context(), cfg); r.Portal != tt.want {
			t.Errorf("%d %s: %q, want %q", tt.status, tt.location, r.Portal, tt.want)
		}
	}
}

func FuzzNegotiates(f *testing.F) {
	f.Add([]byte{0x80, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 1}, []byte{1, 2})
	f.Add([]byte{0x80, 0, 0, 0, 1, 2, 1, 2, 0}, []byte{1, 2})
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, b, source []byte) {
		if negotiates(b, source) && (b[0]&0x80 == 0 || b[1]|b[2]|b[3]|b[4] != 0) {
			t.Errorf("%x", b)
		}
	})
}
