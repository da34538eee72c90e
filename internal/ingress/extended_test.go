// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

// socketSite is a TLS server whose paths are the answers to a WebSocket's handshake.
func socketSite(t *testing.T, start func(*httptest.Server)) *httptest.Server {
	t.Helper()
	up := websocket.Upgrader{Subprotocols: []string{"chat"}, CheckOrigin: func(*http.Request) bool { return true }}
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/no":
			http.Error(w, "no", http.StatusTeapot)
			return
		case r.URL.Path == "/page":
			_, _ = io.WriteString(w, "a page")
			return
		case r.Header[protocolField] != nil:
			http.Error(w, "the pseudo-header came as a field", http.StatusBadRequest)
			return
		}
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		for r.URL.Path != "/cut" {
			kind, text, err := c.ReadMessage()
			if err != nil || c.WriteMessage(kind, text) != nil {
				return
			}
		}
	}))
	site.Config.ErrorLog = log.New(io.Discard, "", 0)
	start(site)
	t.Cleanup(site.Close)
	return site
}

// extended runs the Node client of testdata and returns what it printed.
func extended(t *testing.T, origin string, args ...string) string {
	t.Helper()
	node := testenv.Need(t, "node")
	cmd := exec.CommandContext(t.Context(), node, append([]string{"testdata/extended.mjs"}, args...)...)
	cmd.Env = append(os.Environ(), "ORIGIN="+origin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, out)
	}
	return string(out)
}

// TestWebSocketOverHTTP2 opens WebSockets by extended CONNECT, as a browser does that has
// an HTTP/2 connection already: inside an intercepted tunnel, and by base URL in clear.
// Messages larger than a frame of HTTP/2 pass, and the upstream is asked over HTTP/1.1.
func TestWebSocketOverHTTP2(t *testing.T) {
	r := newTLSRigFor(t, socketSite(t, (*httptest.Server).StartTLS), func(_ *Config, _ *Table, u *Upstream) {
		u.Transport.(stdTransport).ForceAttemptHTTP2 = false
		u.Transport.(stdTransport).TLSClientConfig.NextProtos = []string{"http/1.1"}
	})
	const talked = "offered true\nstatus 200 chat undefined undefined undefined\necho 5\necho 130000\necho 1000000\nclose 1000\nend 0\n"
	tests := []struct {
		name, origin, host, path, protocol, want string
		cause                                    string
	}{
		{"intercepted", "", host, "/v1/realtime?model=m", "websocket", talked, ""},
		{"in clear", "", "", "/up/v1/realtime?model=m", "websocket", talked, ""},
		{"the upstream refuses", "", host, "/no", "websocket", "offered true\nstatus 418 undefined undefined undefined undefined\nend 0\n", ""},
		{"the upstream answers 200", "", host, "/page", "websocket", "offered true\nstatus 502 undefined undefined undefined undefined\nend 0\n", "upstream_bad_handshake"},
		{"it breaks off", "", host, "/cut", "websocket", "offered true\nstatus 200 chat undefined undefined undefined\nend 0\n", CauseWebSocketDropped},
		{"another protocol", "", host, "/", "connect-udp", "offered true\nstatus 501 undefined undefined undefined undefined\nend 0\n", "unsupported_protocol"},
		{"a web page", "http://evil.example", "", "/up/v1/realtime", "websocket", "offered true\nstatus 403 undefined undefined undefined undefined\nend 0\n", "origin_not_allowed"},
		{"no upstream", "", "", "/none/", "websocket", "offered true\nstatus 404 undefined undefined undefined undefined\nend 0\n", "unknown_upstream"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if out := extended(t, tt.origin, r.addr, tt.host, r.ca, tt.path, tt.protocol, "5", "130000", "1000000"); out != tt.want {
				t.Errorf("node printed %q, want %q", out, tt.want)
			}
			rec := r.record()
			if rec.Cause != tt.cause || rec.AppProto != "HTTP/2.0" || rec.Method != http.MethodConnect {
				t.Errorf("record %+v", rec)
			}
			if tt.want == talked && (rec.Mode != ModeWebSocket || rec.Outcome != OutcomeOK || rec.BytesIn < 1_130_000 || rec.BytesOut < 1_130_000) {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// TestStreamConnEndsAWriteThatWaits closes one whose app takes nothing: the app sees a cut,
// and nothing is written any more.
func TestStreamConnEndsAWriteThatWaits(t *testing.T) {
	const more = 64 << 20 // than any window
	written, ended := make(chan error, 1), make(chan error, 2)
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := newStreamConn(&exchange{r: r, w: w, rc: http.NewResponseController(w)})
		if _, err := c.Write([]byte("first")); err != nil {
			t.Error(err)
		}
		waits := make(chan struct{})
		go func() {
			close(waits)
			_, err := c.Write(make([]byte, more))
			written <- err
		}()
		<-waits
		for !c.busy() {
			runtime.Gosched()
		}
		_ = c.Close()
		ended <- <-written
		_, err := c.Write([]byte("x"))
		ended <- err
	}))
	site.Config.Protocols = new(http.Protocols)
	site.Config.Protocols.SetUnencryptedHTTP2(true)
	site.Start()
	defer site.Close()
	tr := &http.Transport{Protocols: site.Config.Protocols}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get(site.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := <-ended; err == nil {
		t.Error("all was written to an app that takes nothing")
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || n >= more {
		t.Errorf("the app read %d bytes to a clean end", n)
	}
}

// busy says whether a Write has begun and not ended.
func (c *streamConn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writing > 0
}

// TestTheEnvironmentIsAsItWas keeps the setting of net/http from programs that are started.
func TestTheEnvironmentIsAsItWas(t *testing.T) {
	if v := os.Getenv("GODEBUG"); strings.Contains(v, "http2xconnect") {
		t.Errorf("GODEBUG=%q", v)
	}
}
