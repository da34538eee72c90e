// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/testenv"
)

// host is one for which httptest has a certificate; nothing is asked for its address.
const (
	host       = "example.com"
	secondHost = "www.example.com"
)

// A tlsRig is a rig that intercepts host, an upstream over TLS, which answers with what
// it was asked.
type tlsRig struct {
	*rig
	roots   *x509.CertPool // ours
	ca      string         // the file
	site    *httptest.Server
	results chan InterceptResult
	trouble chan error
	learned chan time.Time
}

// newTLSRig starts one. change may alter what it is made of.
func newTLSRig(t testing.TB, change func(*Config, *Table, *Upstream)) *tlsRig {
	t.Helper()
	site := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	site.EnableHTTP2, site.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	site.StartTLS()
	t.Cleanup(site.Close)
	return newTLSRigFor(t, site, change)
}

func newTLSRigFor(t testing.TB, site *httptest.Server, change func(*Config, *Table, *Upstream)) *tlsRig {
	t.Helper()
	authority, err := ca.New(ca.Config{Hosts: []string{host, secondHost, "127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &tlsRig{ca: filepath.Join(t.TempDir(), "ca.pem"), roots: x509.NewCertPool(), site: site, results: make(chan InterceptResult, 100), trouble: make(chan error, 100), learned: make(chan time.Time, 1)}
	r.roots.AddCert(authority.Certificates()[0])
	if err := ca.WritePublic(r.ca, ca.PEM(authority.Certificates()...)); err != nil {
		t.Fatal(err)
	}
	theirs := x509.NewCertPool()
	theirs.AddCert(site.Certificate())
	var d net.Dialer
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, site.Listener.Addr().String())
	}
	tr := newTransport()
	tr.TLSClientConfig, tr.DialContext, tr.ForceAttemptHTTP2 = &tls.Config{RootCAs: theirs}, dial, true
	t.Cleanup(tr.CloseIdleConnections)
	cfg := Config{Intercept: Intercept{Hosts: []string{host, secondHost, "127.0.0.1"}, Certificate: authority.Certificate}, Hooks: Hooks{
		Intercepted:      func(res InterceptResult) { r.results <- res },
		InterceptTrouble: func(_ string, err error) { r.trouble <- err },
		Distrusted:       func(_ string, until time.Time) { r.learned <- until },
	}}
	r.rig = newRigFrom(t, &cfg, site.Listener.Addr().String(), func(tab *Table, u *Upstream) {
		u.URL, u.Transport = &url.URL{Scheme: "https", Host: host}, tr
		tab.Forward.Transport, tab.Forward.Dial = tr, dial
		if change != nil {
			change(&cfg, tab, u)
		}
	})
	return r
}

// echo answers with what arrived.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_ = json.NewEncoder(w).Encode(seen{r.Proto, r.Method, r.Host, r.URL.RequestURI(), r.Header, string(body)})
}

type seen struct {
	Proto, Method, Host, Target string
	Header                      http.Header
	Body                        string
}

// result waits for what became of a tunnel.
func (r *tlsRig) result(want InterceptResult) {
	r.t.Helper()
	select {
	case got := <-r.results:
		if got != want {
			r.t.Errorf("the tunnel was %s, want %s", got, want)
		}
	case <-time.After(patience):
		r.t.Errorf("no tunnel was %s", want)
	}
}

// through is a client that uses the rig as its proxy and trusts roots.
func (r *tlsRig) through(roots *x509.CertPool, http2 bool) *http.Client {
	tr := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}),
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: http2,
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// fetch makes a call and reads what echo saw.
func (r *tlsRig) fetch(c *http.Client, method, target, body string) (seen, *http.Response) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var s seen
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		r.t.Fatalf("%s: %v", resp.Status, err)
	}
	return s, resp
}

// open makes a tunnel to authority and a TLS handshake in it.
func (r *tlsRig) open(authority string, cfg *tls.Config) (*tls.Conn, error) {
	r.t.Helper()
	app := connect(r.rig, authority)
	c := tls.Client(&bufferedConn{app.TCPConn, app.In}, cfg)
	return c, c.HandshakeContext(r.t.Context())
}

// A bufferedConn reads what is left of a head's reader first.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.in.Read(p) }

func TestInterceptedCallsAreThoseOfTheUpstream(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		name := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
		t.Run(name, func(t *testing.T) {
			r := newTLSRig(t, func(_ *Config, _ *Table, u *Upstream) { u.SetHeaders = http.Header{"Authorization": {"injected"}} })
			c := r.through(r.roots, http2)
			for range 3 { // on one connection
				s, resp := r.fetch(c, http.MethodPost, "https://"+host+"/v1/a%2Fb?q=1", "question")
				if resp.Proto != name || s.Proto != "HTTP/2.0" || s.Method != http.MethodPost || s.Host != host || s.Target != "/v1/a%2Fb?q=1" || s.Body != "question" {
					t.Errorf("%s, upstream saw %+v", resp.Proto, s)
				}
				if got := s.Header.Get("Authorization"); got != "injected" {
					t.Errorf("Authorization %q", got)
				}
				rec := r.record()
				if rec.Mode != ModeIntercept || rec.Upstream != "up" || rec.Outcome != OutcomeOK || rec.AppProto != name || rec.Method != http.MethodPost {
					t.Errorf("record %+v", rec)
				}
			}
			r.result(Intercepted)
			if len(r.results) != 0 || len(r.records) != 0 {
				t.Errorf("%d more tunnels, %d more records", len(r.results), len(r.records))
			}
		})
	}
}

// TestInterceptedHostThatIsNoUpstream goes the way of absolute-form requests; what is
// injected for upstreams is not for it.
func TestInterceptedHostThatIsNoUpstream(t *testing.T) {
	r := newTLSRig(t, func(_ *Config, _ *Table, u *Upstream) {
		u.URL.Host, u.SetHeaders = "other.example", http.Header{"Authorization": {"injected"}}
	})
	s, _ := r.fetch(r.through(r.roots, true), http.MethodGet, "https://"+host+"/x?y", "")
	if s.Host != host || s.Target != "/x?y" || s.Header.Get("Authorization") != "" {
		t.Errorf("upstream saw %+v", s)
	}
	if rec := r.record(); rec.Mode != ModeIntercept || rec.Upstream != "" || rec.Outcome != OutcomeOK {
		t.Errorf("record %+v", rec)
	}
}

func TestUnlistedHostIsNeverIntercepted(t *testing.T) {
	for name, target := range map[string]string{"another name": "sub." + host + ":443", "a listed name's end": "x" + host + ":443", "another address": "127.0.0.2:443"} {
		t.Run(name, func(t *testing.T) {
			r := newTLSRig(t, nil)
			c, err := r.open(target, &tls.Config{ServerName: host, RootCAs: r.theirs()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if got := c.ConnectionState().PeerCertificates[0]; !got.Equal(r.site.Certificate()) {
				t.Errorf("the certificate is %v's", got.Subject)
			}
			if len(r.results) != 0 {
				t.Errorf("counted as %s", <-r.results)
			}
		})
	}
}

// theirs trusts the site itself.
func (r *tlsRig) theirs() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(r.site.Certificate())
	return pool
}

// TestBlindTunnelPassesTheFirstBytes sends what is not for us to a listed host, also
// together with CONNECT and one by one: the server sees each byte.
func TestBlindTunnelPassesTheFirstBytes(t *testing.T) {
	otherName := firstFlight(t, &tls.Config{ServerName: "front.example", NextProtos: []string{"h2"}})
	tests := []struct {
		name, first string
		want        InterceptResult
	}{
		{"no HTTP in clear", "BREW / HTTP/1.1\r\nHost: example.com\r\n\r\n", InterceptNoTLS},
		{"one byte", "x", InterceptNoTLS},
		{"no handshake", "\x17\x03\x03\x00\x01x", InterceptNoTLS},
		{"a ClientHello for another host", otherName, InterceptName},
		{"no HTTP", firstFlight(t, &tls.Config{ServerName: host, NextProtos: []string{"acme-tls/1"}}), InterceptALPN},
	}
	for _, tt := range tests {
		for _, how := range []string{"together", "apart", "byte by byte"} {
			t.Run(tt.name+" "+how, func(t *testing.T) {
				got := make(chan string, 1)
				addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
					buf := make([]byte, len(tt.first))
					n, _ := io.ReadFull(c.In, buf)
					got <- string(buf[:n])
					c.SendExact("answer")
				})
				r := newTLSRig(t, func(_ *Config, tab *Table, _ *Upstream) {
					var d net.Dialer
					tab.Forward.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
						return d.DialContext(ctx, network, addr)
					}
				})
				app := r.dial()
				head := "CONNECT " + host + ":443 HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
				switch how {
				case "together":
					app.SendExact(head + tt.first)
				case "apart":
					app.SendExact(head)
					app.Head()
					app.SendExact(tt.first)
				default:
					app.SendExact(head)
					for i := range len(tt.first) {
						app.SendExact(tt.first[i : i+1])
					}
				}
				if how != "apart" {
					app.Head()
				}
				app.Expect("answer")
				if s := <-got; s != tt.first {
					t.Errorf("the server saw %q, want %q", s, tt.first)
				}
				r.result(tt.want)
			})
		}
	}
}

// firstFlight is what a TLS client sends first.
func firstFlight(t testing.TB, cfg *tls.Config) string {
	t.Helper()
	app, site := net.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); _ = tls.Client(app, cfg).Handshake() }()
	buf := make([]byte, 16<<10)
	n, err := site.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_ = site.Close()
	<-done
	return string(buf[:n])
}

func TestServerThatSpeaksFirst(t *testing.T) {
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) { c.SendExact("220 hello\r\n"); c.Expect("QUIT"); c.SendExact("221") })
	r := newTLSRig(t, func(cfg *Config, tab *Table, _ *Upstream) {
		var d net.Dialer
		cfg.Intercept.Peek = 20 * time.Millisecond
		tab.Forward.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return d.DialContext(ctx, network, addr)
		}
	})
	app := connect(r.rig, host+":443")
	app.Expect("220 hello\r\n")
	app.SendExact("QUIT")
	app.Expect("221")
	r.result(InterceptNoTLS)
}

// TestClientHelloInTheSegmentOfCONNECT does not wait for the 200, as some clients do.
func TestClientHelloInTheSegmentOfCONNECT(t *testing.T) {
	r := newTLSRig(t, nil)
	app := r.dial()
	c := tls.Client(&eagerConn{Conn: app.TCPConn, in: app.In, head: "CONNECT " + host + ":443 HTTP/1.1\r\nHost: " + host + "\r\n\r\n"},
		&tls.Config{ServerName: host, RootCAs: r.roots})
	if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	r.result(Intercepted)
}

// An eagerConn sends CONNECT with its first bytes, and takes the answer off.
type eagerConn struct {
	net.Conn
	in       *bufio.Reader
	head     string
	answered bool
}

func (c *eagerConn) Write(p []byte) (int, error) {
	head := c.head
	c.head = ""
	n, err := c.Conn.Write(append([]byte(head), p...))
	return n - len(head), err
}

func (c *eagerConn) Read(p []byte) (int, error) {
	if !c.answered {
		c.answered = true
		if _, err := c.in.Discard(len(connectEstablished)); err != nil {
			return 0, err
		}
	}
	return c.in.Read(p)
}

func TestBlindTunnelThatCannotBeReachedBreaks(t *testing.T) {
	refused := errors.New("dial: refused")
	r := newTLSRig(t, func(_ *Config, tab *Table, _ *Upstream) {
		tab.Forward.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, refused }
	})
	app := connect(r.rig, host+":443")
	app.SendExact("plain")
	if rest, err := app.Rest(); err == nil || rest != "" {
		t.Errorf("the app read %q to a clean end, want a reset", rest)
	}
	if err := <-r.trouble; !errors.Is(err, refused) {
		t.Errorf("said %v", err)
	}
	if rec := r.record(); rec.Outcome != OutcomeUpstreamError || rec.Mode != ModeTunnel || rec.Cause == "" {
		t.Errorf("record %+v", rec)
	}
}

func TestRequestForAnotherHostIsMisdirected(t *testing.T) {
	r := newTLSRig(t, nil)
	c, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.roots})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	tests := []struct {
		name, head string
		status     int
	}{
		{"the host", "GET / HTTP/1.1\r\nHost: Example.com\r\n\r\n", 200},
		{"with its port", "GET / HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 200},
		{"absolute form", "GET https://example.com/x HTTP/1.1\r\nHost: example.com\r\n\r\n", 200},
		{"another host", "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", 421},
		{"our own listener", "GET /up/v1 HTTP/1.1\r\nHost: " + r.addr + "\r\n\r\n", 421},
		{"another port", "GET / HTTP/1.1\r\nHost: example.com:8443\r\n\r\n", 421},
		{"absolute form of another host", "GET https://other.example/x HTTP/1.1\r\nHost: other.example\r\n\r\n", 421},
		{"absolute form without TLS", "GET http://example.com/x HTTP/1.1\r\nHost: example.com\r\n\r\n", 421},
		{"CONNECT", "CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n", 400},
	}
	for _, tt := range tests {
		if _, err := io.WriteString(c, tt.head); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != tt.status {
			t.Errorf("%s: %s, %v; want %d", tt.name, resp.Status, err, tt.status)
		}
	}
	// Over HTTP/2 the name comes in :authority.
	h2 := r.through(r.roots, true)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "other.example"
	resp, err := h2.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusMisdirectedRequest || resp.Proto != "HTTP/2.0" {
		t.Errorf("%s %s, want 421", resp.Proto, resp.Status)
	}
}

// A farListener gives connections that seem to come from another machine.
type farListener struct{ net.Listener }

type farConn struct{ net.Conn }

func (l farListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return farConn{c}, nil
}

func (farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// TestInterceptedCredentialsKeepTheirRules lets in from afar who has shown the token
// with CONNECT, and that token goes nowhere else.
func TestInterceptedCredentialsKeepTheirRules(t *testing.T) {
	r := newTLSRig(t, func(_ *Config, tab *Table, u *Upstream) {
		tab.Token, u.SetHeaders = "s3cret", http.Header{"Authorization": {"injected"}}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ctx, farListener{ln}) }()
	for _, http2 := range []bool{false, true} {
		c := r.through(r.roots, http2)
		tr := c.Transport.(*http.Transport)
		tr.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: ln.Addr().String(), User: url.UserPassword("any", "s3cret")})
		s, resp := r.fetch(c, http.MethodGet, "https://"+host+"/", "")
		if resp.StatusCode != http.StatusOK || s.Header.Get("Authorization") != "injected" || s.Header.Get("Proxy-Authorization") != "" {
			t.Errorf("%s, upstream saw %+v", resp.Status, s)
		}
		tr.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: ln.Addr().String()})
		tr.CloseIdleConnections()
		if resp, err := c.Get("https://" + host + "/"); err == nil {
			_ = resp.Body.Close()
			t.Errorf("without the token: %s", resp.Status)
		}
		tr.CloseIdleConnections()
	}
	cancel()
	r.server.Abort()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
