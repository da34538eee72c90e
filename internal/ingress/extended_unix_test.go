// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ingress

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestChromiumOpensWebSocketsOverHTTP2 loads a page through an intercepted tunnel, whose
// WebSocket comes as a stream of the connection that the page came by.
func TestChromiumOpensWebSocketsOverHTTP2(t *testing.T) {
	program := testenv.Need(t, "chromium-headless-shell")
	const page = `<script>
const ws = new WebSocket("wss://" + location.host + "/v1/realtime", ["chat"]);
ws.onopen = () => ws.send("x".repeat(200000));
ws.onmessage = (e) => { fetch("/report", {method: "POST", body: ws.protocol + " " + e.data.length}); ws.close(1000); };
ws.onclose = (e) => { if (e.code !== 1000) fetch("/report", {method: "POST", body: "close " + e.code}); };
</script>`
	reports := make(chan string, 10)
	up := websocket.Upgrader{Subprotocols: []string{"chat"}}
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, page)
		case "/report":
			text, _ := io.ReadAll(r.Body)
			reports <- string(text)
		case "/v1/realtime":
			c, err := up.Upgrade(w, r, nil)
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			if kind, text, err := c.ReadMessage(); err == nil && c.WriteMessage(kind, text) == nil {
				_, _, _ = c.ReadMessage()
			}
		default:
			http.NotFound(w, r)
		}
	}))
	site.Config.ErrorLog = log.New(io.Discard, "", 0)
	site.StartTLS()
	t.Cleanup(site.Close)
	r := newTLSRigFor(t, site, func(_ *Config, _ *Table, u *Upstream) {
		u.Transport.(stdTransport).ForceAttemptHTTP2 = false
		u.Transport.(stdTransport).TLSClientConfig.NextProtos = []string{"http/1.1"}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--user-data-dir="+t.TempDir(), "--ignore-certificate-errors", "--proxy-server=http://"+r.addr, "--remote-debugging-port=0", "https://"+host+"/")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }() // killed
	select {
	case got := <-reports:
		if got != "chat 200000" {
			t.Errorf("the page reports %q", got)
		}
	case <-ctx.Done():
		t.Fatal("the page reports nothing")
	}
	for {
		if rec := r.record(); rec.Mode == ModeWebSocket {
			if rec.AppProto != "HTTP/2.0" || rec.Outcome != OutcomeOK {
				t.Errorf("record %+v", rec)
			}
			return
		}
	}
}
