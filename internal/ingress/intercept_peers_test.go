// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/testenv"
)

// program runs a client to its end and returns what it printed.
func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", name, err, out, errs.String())
	}
	return string(out)
}

func TestInterceptedByCurl(t *testing.T) {
	curl := testenv.Need(t, "curl")
	for version, proto := range map[string]string{"1.1": "HTTP/1.1", "2": "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			r := newTLSRig(t, nil)
			out := program(t, curl, "-sS", "--http"+version, "-x", "http://"+r.addr, "--cacert", r.ca, "-d", "question", "-w", "\n%{http_version} %{proxy_ssl_verify_result} %{ssl_verify_result}",
				"https://"+host+"/v1?q", "https://"+host+"/v1?q")
			if strings.Count(out, `"Body":"question"`) != 2 || !strings.HasSuffix(out, "\n"+version+" 0 0") {
				t.Errorf("curl printed %s", out)
			}
			for range 2 {
				if rec := r.record(); rec.Mode != ModeIntercept || rec.AppProto != proto || rec.UpstreamProto != "HTTP/2.0" || rec.Outcome != OutcomeOK {
					t.Errorf("record %+v", rec)
				}
			}
			r.result(Intercepted)
		})
	}
}

// nodeClient makes two calls on one connection that a CONNECT has opened.
const nodeClient = `
const [proxy, host, ca] = process.argv.slice(1);
const http = require("http"), https = require("https"), tls = require("tls"), fs = require("fs");
const [name, port] = proxy.split(":");
http.request({host: name, port, method: "CONNECT", path: host + ":443"}).on("connect", (answer, socket, head) => {
  if (answer.statusCode !== 200 || head.length) throw new Error("CONNECT: " + answer.statusCode);
  const agent = new https.Agent({keepAlive: true, maxSockets: 1});
  agent.createConnection = () => tls.connect({socket, servername: host, ca: fs.readFileSync(ca), ALPNProtocols: ["http/1.1"]});
  const call = (then) => https.request({host, path: "/v1?q", method: "POST", agent}, (resp) => {
    let body = "";
    resp.on("data", (d) => body += d).on("end", () => { console.log(resp.statusCode, JSON.parse(body).Body); then(); });
  }).end("question");
  call(() => call(() => agent.destroy()));
}).end();
`

func TestInterceptedByNode(t *testing.T) {
	node := testenv.Need(t, "node")
	r := newTLSRig(t, nil)
	out := program(t, node, "-e", nodeClient, "--", r.addr, host, r.ca)
	if out != "200 question\n200 question\n" {
		t.Errorf("node printed %q", out)
	}
	r.result(Intercepted)
}

func TestInterceptedByPython(t *testing.T) {
	python := testenv.NeedPython(t, "requests")
	r := newTLSRig(t, nil)
	out := program(t, python, "-c", `
import sys, requests
proxy, host, ca = sys.argv[1:]
with requests.Session() as s:
    s.trust_env = False
    for _ in range(2):
        print(s.post(f"https://{host}/v1?q", data="question", verify=ca, proxies={"https": f"http://{proxy}"}, timeout=20).json()["Body"])
`, r.addr, host, r.ca)
	if out != "question\nquestion\n" {
		t.Errorf("python printed %q", out)
	}
	r.result(Intercepted)
}

// TestInterceptedWebSocket talks through CONNECT and TLS, as the realtime SDKs do.
func TestInterceptedWebSocket(t *testing.T) {
	up := websocket.Upgrader{}
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		for {
			kind, text, err := c.ReadMessage()
			if err != nil || c.WriteMessage(kind, text) != nil {
				return
			}
		}
	}))
	site.Config.ErrorLog = log.New(io.Discard, "", 0)
	site.StartTLS()
	defer site.Close()
	r := newTLSRigFor(t, site, func(_ *Config, _ *Table, u *Upstream) {
		u.Transport.(stdTransport).ForceAttemptHTTP2 = false
		u.Transport.(stdTransport).TLSClientConfig.NextProtos = []string{"http/1.1"}
	})
	d := websocket.Dialer{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}), TLSClientConfig: &tls.Config{RootCAs: r.roots}, HandshakeTimeout: patience}
	c, resp, err := d.Dial("wss://"+host+"/v1/realtime?model=m", nil)
	if err != nil {
		t.Fatal(err, resp)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	for _, text := range []string{"a", strings.Repeat("b", 200<<10)} {
		if err := c.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.ReadMessage(); err != nil || string(got) != text {
			t.Fatalf("%d bytes, %v; want %d", len(got), err, len(text))
		}
	}
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(patience))
	if _, _, err := c.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the end: %v", err)
	}
	_ = c.Close()
	if rec := r.record(); rec.Mode != ModeWebSocket || rec.Upstream != "up" || rec.Outcome != OutcomeOK {
		t.Errorf("record %+v", rec)
	}
	r.result(Intercepted)
}

// TestClientsThatDoNotTrustAreLeftAlone refuses our certificate three times by alert;
// then the app gets the server's own.
func TestClientsThatDoNotTrustAreLeftAlone(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			r := newTLSRig(t, nil)
			cfg := &tls.Config{ServerName: host, RootCAs: r.theirs(), MinVersion: version, MaxVersion: version}
			for range 3 {
				c, err := r.open(host+":443", cfg)
				if err == nil {
					t.Fatal("our certificate was accepted")
				}
				r.result(Untrusted)
				_ = c.Close()
				if rec := r.record(); rec.Outcome != OutcomeCutApp || rec.Mode != ModeTunnel {
					t.Errorf("record %+v", rec)
				}
			}
			if until := <-r.learned; time.Until(until) < 59*time.Minute {
				t.Errorf("left alone until %v", until)
			}
			c, err := r.open(host+":443", cfg)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			r.result(InterceptLearned)
			if list := r.server.Exceptions(); len(list) != 1 || list[0].Host != host {
				t.Errorf("exceptions %+v", list)
			}
			if n := r.server.ClearExceptions("Example.com."); n != 1 {
				t.Errorf("cleared %d", n)
			}
			c, err = r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.roots})
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			r.result(Intercepted)
		})
	}
}

// TestWhatIsNoDistrust breaks handshakes right after our certificate without an alert
// that speaks of it: an app may just have been stopped, or its machine gone to sleep.
func TestWhatIsNoDistrust(t *testing.T) {
	for name, want := range map[string]InterceptResult{
		"close": InterceptLeft, "reset": InterceptFailed, "nonsense": InterceptFailed, "another alert": InterceptFailed, "canceled": InterceptFailed,
	} {
		t.Run(name, func(t *testing.T) {
			r := newTLSRig(t, nil)
			hello := firstFlight(t, &tls.Config{ServerName: host})
			for range refusalsThatCount + 1 {
				app := connect(r.rig, host+":443")
				app.SendExact(hello)
				if _, err := app.In.ReadByte(); err != nil { // our certificate is on its way
					t.Fatal(err)
				}
				switch name {
				case "reset":
					_ = app.SetLinger(0)
				case "nonsense":
					app.SendExact("\x16\x03\x03\x00\x01x")
					_, _ = app.Rest()
				case "another alert":
					app.SendExact("\x15\x03\x03\x00\x02\x02\x28") // handshake_failure
					_, _ = app.Rest()
				case "canceled":
					app.SendExact("\x15\x03\x03\x00\x02\x01\x5a") // user_canceled
					_, _ = app.Rest()
				default:
					_, _ = io.CopyN(io.Discard, app.In, int64(app.In.Buffered())) // unread, it would be a reset
				}
				_ = app.Close()
				r.result(want)
			}
			if list := r.server.Exceptions(); len(list) != 0 {
				t.Errorf("left alone: %v", list)
			}
			if name == "close" {
				if err := <-r.trouble; !strings.Contains(err.Error(), "intercept.blind") {
					t.Errorf("said %v", err)
				}
			}
		})
	}
}

// refusalsThatCount is how many make a host be left alone.
const refusalsThatCount = 3

// TestAlertsThatAreDistrust sends each of those that speak of a certificate.
func TestAlertsThatAreDistrust(t *testing.T) {
	for name, alert := range map[string]byte{"bad_certificate": 42, "unsupported_certificate": 43, "certificate_unknown": 46, "unknown_ca": 48} {
		t.Run(name, func(t *testing.T) {
			r := newTLSRig(t, nil)
			hello := firstFlight(t, &tls.Config{ServerName: host})
			for range refusalsThatCount {
				if list := r.server.Exceptions(); len(list) != 0 {
					t.Errorf("left alone too early: %v", list)
				}
				app := connect(r.rig, host+":443")
				app.SendExact(hello)
				if _, err := app.In.ReadByte(); err != nil {
					t.Fatal(err)
				}
				app.SendExact("\x15\x03\x03\x00\x02\x02" + string(rune(alert)))
				_, _ = app.Rest()
				_ = app.Close()
				r.result(Untrusted)
			}
			if list := r.server.Exceptions(); len(list) != 1 || list[0].Host != host {
				t.Errorf("left alone: %v", list)
			}
		})
	}
}

// TestDistrustOfCurl is what a real client does with a certificate that it cannot check.
func TestDistrustOfCurl(t *testing.T) {
	curl := testenv.Need(t, "curl")
	r := newTLSRig(t, nil)
	theirs := filepath.Join(t.TempDir(), "theirs.pem")
	if err := ca.WritePublic(theirs, ca.PEM(r.site.Certificate())); err != nil {
		t.Fatal(err)
	}
	call := func() error {
		return exec.CommandContext(t.Context(), curl, "-sS", "-o", "/dev/null", "-x", "http://"+r.addr, "--cacert", theirs, "https://"+host+"/").Run()
	}
	for range refusalsThatCount {
		if err := call(); err == nil {
			t.Fatal("curl has accepted our certificate")
		}
		r.result(Untrusted)
	}
	if err := call(); err != nil {
		t.Errorf("the host is not left alone: %v", err)
	}
	r.result(InterceptLearned)
	// Other clients may trust us: nothing changes for them.
	r.fetch(r.through(r.roots, true), http.MethodGet, "https://"+host+"/", "")
	r.result(Intercepted)
}

// TestNodeThatDoesNotTrustUs ends its connection without an alert: that is told, and
// nothing else changes.
func TestNodeThatDoesNotTrustUs(t *testing.T) {
	node := testenv.Need(t, "node")
	r := newTLSRig(t, nil)
	script := strings.Replace(nodeClient, "ca: fs.readFileSync(ca),", "", 1)
	for range refusalsThatCount + 1 {
		if out, err := exec.CommandContext(t.Context(), node, "-e", script, "--", r.addr, host, r.ca).CombinedOutput(); err == nil {
			t.Fatalf("node has accepted our certificate: %s", out)
		}
		r.result(InterceptLeft)
		if err := <-r.trouble; !strings.Contains(err.Error(), "warmwire ca path") {
			t.Errorf("said %v", err)
		}
	}
	if list := r.server.Exceptions(); len(list) != 0 {
		t.Errorf("left alone: %v", list)
	}
}

// TestAppThatLeavesAfterTheHandshake is what clients do that compare certificates only
// then: the first time it is told, unless there was a request before.
func TestAppThatLeavesAfterTheHandshake(t *testing.T) {
	for _, asks := range []bool{false, true} {
		r := newTLSRig(t, nil)
		if asks {
			r.fetch(r.through(r.roots, true), http.MethodGet, "https://"+host+"/", "")
			r.result(Intercepted)
		}
		for range refusalsThatCount {
			c, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.roots})
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			r.result(Intercepted)
		}
		if !asks {
			if err := <-r.trouble; !strings.Contains(err.Error(), "intercept.blind") {
				t.Errorf("said %v", err)
			}
		}
		if list := r.server.Exceptions(); len(list) != 0 || len(r.trouble) != 0 {
			t.Errorf("left alone: %v; %d more troubles", list, len(r.trouble))
		}
	}
}

// oneSession gives every server the session that came last.
type oneSession struct{ s *tls.ClientSessionState }

func (o *oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.s, o.s != nil }
func (o *oneSession) Put(_ string, s *tls.ClientSessionState)    { o.s = s }

func TestSessionTicketsBelongToOneHost(t *testing.T) {
	r := newTLSRig(t, nil)
	sessions := &oneSession{}
	resumed := func(name string) bool {
		c, err := r.open(name+":443", &tls.Config{ServerName: name, InsecureSkipVerify: true, ClientSessionCache: sessions})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil { // the ticket comes before it
			t.Fatal(err)
		}
		return c.ConnectionState().DidResume
	}
	if resumed(host) {
		t.Error("the first handshake was resumed")
	}
	if !resumed(host) {
		t.Error("the second one was not: this proves nothing")
	}
	if resumed(secondHost) {
		t.Error("another host's ticket was accepted")
	}
}

func TestInterceptedHostWithoutACertificateIsLeftAlone(t *testing.T) {
	expired := errors.New("the authority is not valid at this time")
	r := newTLSRig(t, func(cfg *Config, _ *Table, _ *Upstream) {
		cfg.Intercept.Certificate = func(string) (*tls.Certificate, error) { return nil, expired }
	})
	c, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.theirs()})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	r.result(InterceptNoCert)
	if err := <-r.trouble; !errors.Is(err, expired) {
		t.Errorf("said %v", err)
	}
}

// breakingOff is a site that begins an answer and breaks it off.
func breakingOff(t *testing.T) *httptest.Server {
	t.Helper()
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	site.Config.ErrorLog = log.New(io.Discard, "", 0)
	site.StartTLS()
	t.Cleanup(site.Close)
	return site
}

// TestInterceptedCutStreamLooksCut breaks an answer off: the app must not take it for
// whole.
func TestInterceptedCutStreamLooksCut(t *testing.T) {
	site := breakingOff(t)
	for _, http2 := range []bool{false, true} {
		r := newTLSRigFor(t, site, nil)
		resp, err := r.through(r.roots, http2).Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(b) != "half" || err == nil {
			t.Errorf("HTTP/2 %v: %q, %v; want an error", http2, b, err)
		}
	}
}

// TestInterceptedAppThatLeavesEndsTheCall closes the app's connection in mid-answer.
func TestInterceptedAppThatLeavesEndsTheCall(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		ended := make(chan struct{})
		site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(ended)
			panic(http.ErrAbortHandler)
		}))
		defer site.Close()
		r := newTLSRigFor(t, site, nil)
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := r.through(r.roots, http2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = resp.Body.Close()
		within(t, "the upstream call's end", time.Second, ended)
		if rec := r.record(); rec.Outcome != OutcomeCutApp || rec.Mode != ModeIntercept {
			t.Errorf("record %+v", rec)
		}
	}
}

// TestDrainEndsIdleInterceptedConnections has nothing to wait for.
func TestDrainEndsIdleInterceptedConnections(t *testing.T) {
	r := newTLSRig(t, nil)
	c, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.roots, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r.record()
	if n := r.server.Running(); n != 0 {
		t.Errorf("%d run on an idle connection", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if left := r.server.Drain(ctx); left != 0 {
		t.Errorf("%d requests still run", left)
	}
	if b, err := io.ReadAll(c); err != nil || !bytes.HasPrefix(b, []byte("HTTP/1.1 200")) {
		t.Errorf("%q, %v; want the answer and a clean end", b, err)
	}
}

// TestInterceptedCutWithoutFramingLooksCut breaks off an answer whose end is that of the
// connection: TLS must not say that it is whole.
func TestInterceptedCutWithoutFramingLooksCut(t *testing.T) {
	site := breakingOff(t)
	r := newTLSRigFor(t, site, nil)
	c, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.roots})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\nHost: "+host+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err == nil {
		t.Errorf("%q to a clean end, want an error", b)
	}
}

// TestTLSIsNotEndedForAPlainUpstream keeps encrypted what the app has encrypted.
func TestTLSIsNotEndedForAPlainUpstream(t *testing.T) {
	r := newTLSRig(t, func(_ *Config, _ *Table, u *Upstream) { u.URL = &url.URL{Scheme: "http", Host: host + ":443"} })
	c, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.theirs()})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	r.result(InterceptALPN)
}
