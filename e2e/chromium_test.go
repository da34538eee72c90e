// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// page opens WebSockets to the addresses in targets, has each answer once, and tells what
// it saw.
//
//go:embed clients/page.html
var page string

// A socket is what a page saw of one WebSocket.
type socket struct {
	Text       string `json:"text"`
	Pieces     int    `json:"pieces"`
	Protocol   string `json:"protocol"`
	Extensions string `json:"extensions"`
	Code       int    `json:"code"`
	Reason     string `json:"reason"`
}

// TestChromium has a page in a browser talk through Warmwire: to its base URL, with and
// without compression, and through it as the browser's proxy, ws: and wss:. A page of an
// origin that is not allowed gets nothing.
func TestChromium(t *testing.T) {
	t.Parallel()
	program := testenv.Need(t, "chromium-headless-shell")
	reports := make(chan map[string]socket, 2)
	var targets sync.Map // by the page's host
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			var got map[string]socket
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Error(err)
			}
			reports <- got
			return
		}
		list, _ := targets.Load(r.Host)
		text, _ := json.Marshal(list) // a map of strings
		frame := ""
		if !strings.HasPrefix(r.Host, "localhost") { // the other origin's page is inside
			frame = "<iframe src='http://" + strings.Replace(r.Host, "127.0.0.1", "localhost", 1) + "'></iframe>"
		}
		fmt.Fprint(w, strings.Replace(page, "TARGETS", string(text), 1)+frame)
	}))
	defer site.Close()
	s := newStage(t, settings{listen: "allow_origins: ['" + site.URL + "']"})

	path := "/v1/realtime?model=" + url.QueryEscape("mock?tokens=5&gap=20ms&session=1m")
	toBase := "ws" + strings.TrimPrefix(s.origin, "http") + "/openai" + path
	list := map[string]string{
		"base-URL":    toBase,
		"compressed":  toBase + url.QueryEscape("&deflate"),
		"tunnel":      "wss" + strings.TrimPrefix(s.tls["openai"], "https") + path,
		"bare-tunnel": "ws" + strings.TrimPrefix(s.plain, "http") + path,
	}
	runs := map[string]*run{}
	for name := range list {
		runs[name] = s.begin("page-" + name)
		close(runs[name].first) // nothing is held back here
	}
	targets.Store(strings.TrimPrefix(site.URL, "http://"), list)
	foreign := strings.Replace(site.URL, "127.0.0.1", "localhost", 1) // another origin
	targets.Store(strings.TrimPrefix(foreign, "http://"), map[string]string{"foreign": toBase})

	got := browse(t, program, s.origin, site.URL, reports)
	for name := range list {
		saw := got[name]
		want, err := textOf("ws", runs[name].body())
		if name == "compressed" {
			want, err = []byte(got["base-URL"].Text), nil
		}
		if err != nil || saw.Text != string(want) || saw.Pieces != 5 || saw.Protocol != "realtime" || saw.Code != 4001 || saw.Reason != "had enough" ||
			strings.Contains(saw.Extensions, "permessage-deflate") != (name == "compressed") {
			t.Errorf("%s: %+v, want the text %q, %v", name, saw, want, err)
		}
	}
	// The session that is compressed says when it ends too, but not to Warmwire.
	if want, metrics := `warmwire_session_warnings_total{api="openai_realtime",reason="announced",upstream="openai"} 1`, s.page(t, "/metrics"); !strings.Contains(metrics, want+"\n") {
		t.Errorf("want one session to be read: %s", lines(metrics, "session_warnings"))
	}
	if saw := got["foreign"]; saw.Pieces != 0 || saw.Code != 1006 {
		t.Errorf("a page of %s got %+v", foreign, saw)
	}
}

// browse opens a page, with another inside, in a browser whose proxy is Warmwire for all
// but what goes to Warmwire itself and to the pages' own server, and returns what both
// report.
func browse(t *testing.T, program, proxy, address string, reports <-chan map[string]socket) map[string]socket {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	own := strings.TrimPrefix(proxy, "http://")
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(address, "http://"))
	cmd := exec.CommandContext(ctx, program,
		"--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--user-data-dir="+t.TempDir(),
		"--ignore-certificate-errors", "--proxy-server="+proxy, "--proxy-bypass-list=<-loopback>;"+own+";127.0.0.1:"+port+";localhost:"+port,
		address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got := map[string]socket{}
	for range 2 {
		select {
		case report := <-reports:
			for name, saw := range report {
				got[name] = saw
			}
		case <-ctx.Done():
			t.Errorf("the browser reports nothing\n%s", out.String())
		}
	}
	cancel()
	_ = cmd.Wait() // killed
	return got
}
