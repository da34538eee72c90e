// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/activation"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/testenv"
)

// echoing is a real WebSocket server.
func echoing(t *testing.T) string {
	up := websocket.Upgrader{}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		for {
			kind, msg, err := c.ReadMessage()
			if err != nil || c.WriteMessage(kind, msg) != nil {
				return
			}
		}
	})}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	return ln.Addr().String()
}

func TestShutdown(t *testing.T) {
	release := make(chan struct{})
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		switch path := strings.Fields(c.Head() + " - -")[1]; path {
		case "/short":
			c.SendExact(sse + chunk("data: 1\n\n"))
			<-release
			c.SendExact(chunk("data: 2\n\n") + "0\r\n\r\n")
		case "/long":
			c.SendExact(sse + chunk("data: 1\n\n"))
			_, _ = io.Copy(io.Discard, c.In)
		default:
			c.SendExact("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	ws := echoing(t)
	r := start(t, addr, "drain: {timeout: 300ms}\nupstreams:\n  up: {url: 'http://UPSTREAM'}\n  ws: {url: 'http://"+ws+"'}\n")
	open := func(path string) *testenv.Raw {
		app := r.dial()
		app.Send("GET " + path + " HTTP/1.1\nHost: localhost\n\n")
		app.Head()
		return app
	}
	idle, short, long := open("/up/x"), open("/up/short"), open("/up/long")
	idle.Expect("ok")
	short.Expect(chunk("data: 1\n\n"))
	long.Expect(chunk("data: 1\n\n"))
	tunnel := r.dial()
	tunnel.Send("CONNECT " + ws + " HTTP/1.1\nHost: x\n\n")
	tunnel.Head()
	sock, _, err := websocket.DefaultDialer.Dial("ws://"+r.addr+"/ws/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	if body := r.get("/readyz"); !strings.Contains(body, "ready") {
		t.Errorf("readyz before: %q", body)
	}

	r.cancel()
	if rest, _ := idle.Rest(); rest != "" { // ends at once, long before the others
		t.Errorf("idle connection got %q", rest)
	}
	if body := r.get("/readyz"); !strings.Contains(body, "draining") {
		t.Errorf("readyz while draining: %q", body)
	}
	if c, err := net.Dial("tcp", r.addr); err == nil {
		_ = c.Close()
		t.Error("the listener is still open")
	}
	close(release)
	if rest, _ := short.Rest(); rest != chunk("data: 2\n\n")+"0\r\n\r\n" {
		t.Errorf("the short stream ended with %q", rest)
	}
	_ = sock.SetReadDeadline(time.Now().Add(patience))
	_, _, err = sock.ReadMessage()
	var ce *websocket.CloseError
	if !errors.As(err, &ce) || ce.Code != websocket.CloseGoingAway {
		t.Errorf("the WebSocket ended with %v, want 1001", err)
	}
	if rest, _ := long.Rest(); rest != "" {
		t.Errorf("the long stream ended with %q, want a visible cut", rest)
	}
	tunnel.Rest()
	r.stop()
}

func TestDrainWaitServesOn(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	r := start(t, addr, "drain: {wait: 10s, timeout: 1s}\n")
	hold := r.dial()
	hold.Send("CONNECT " + addr + " HTTP/1.1\nHost: x\n\n") // something runs
	hold.Head()
	r.cancel()
	for !strings.Contains(r.get("/readyz"), "draining") {
	}
	app := r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Errorf("while waiting: %q", head)
	}
	_ = app.Close()
	_ = hold.Close()
	r.stop() // nothing runs any more: long before 10 s
}

func TestReloadKeepsWhatRuns(t *testing.T) {
	release := make(chan struct{})
	conns := make(chan struct{}, 100)
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		conns <- struct{}{}
		for head := c.Head(); head != ""; head = c.Head() {
			if strings.Contains(head, "/long") {
				c.SendExact(sse + chunk("data: 1\n\n"))
				<-release
				c.SendExact(chunk("data: 2\n\n") + "0\r\n\r\n")
				continue
			}
			c.SendExact(okAnswer)
		}
	})
	r := start(t, addr, "")
	long := r.dial()
	long.Send("GET /up/long HTTP/1.1\nHost: localhost\n\n")
	long.Head()
	call := func(path string) string {
		app := r.dial()
		defer app.Close()
		app.Send("GET " + path + " HTTP/1.1\nHost: localhost\n\n")
		return app.Head()
	}
	call("/up/x")
	before := len(conns)
	for range 100 {
		if err := r.s.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	call("/up/x")
	if n := len(conns); n != before {
		t.Errorf("%d new upstream connections: an unchanged upstream must keep its own", n-before)
	}
	if err := os.WriteFile(r.file, []byte("nonsense: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.s.Reload(); err == nil || !strings.Contains(err.Error(), r.file+":1: nonsense: unknown key") {
		t.Errorf("a bad file: %v", err)
	}
	if head := call("/up/x"); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Errorf("a bad file changed something: %q", head)
	}
	r.write(addr, "upstreams:\n  renamed: {url: 'http://UPSTREAM'}\n")
	if err := r.s.Reload(); err != nil {
		t.Fatal(err)
	}
	if head := call("/up/x"); !strings.HasPrefix(head, "HTTP/1.1 404 ") {
		t.Errorf("the old name: %q", head)
	}
	if head := call("/renamed/x"); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Errorf("the new name: %q", head)
	}
	close(release)
	long.Expect(chunk("data: 1\n\n") + chunk("data: 2\n\n") + "0\r\n\r\n")
	r.metric(`warmwire_config_reloads_total{result="failed"} 1`)
	r.metric(`warmwire_config_reloads_total{result="ok"} 101`)
}

func TestWebPagesAreRefused(t *testing.T) {
	addr, heads := answering(t, okAnswer)
	r := start(t, addr, "listen: {address: 127.0.0.1:0, allow_origins: ['https://app.example']}\n")
	tests := []struct{ name, fields, status string }{
		{"no browser", "Host: localhost\n", "200"},
		{"listed origin", "Host: localhost\nOrigin: https://app.example\nSec-Fetch-Site: cross-site\n", "200"},
		{"foreign origin", "Host: localhost\nOrigin: http://evil.example\n", "403"},
		{"another local page", "Host: localhost\nOrigin: http://localhost:3000\n", "403"},
		{"origin that begins like ours", "Host: localhost\nOrigin: http://localhost.attacker.example\n", "403"},
		{"null", "Host: localhost\nOrigin: null\n", "403"},
		{"no origin but cross-site", "Host: localhost\nSec-Fetch-Site: cross-site\n", "403"},
		{"rebound name", "Host: evil.example\n", "421"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			app := r.dial()
			app.Send("POST /up/x HTTP/1.1\nContent-Length: 0\n" + tt.fields + "\n")
			if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 "+tt.status+" ") {
				t.Errorf("app listener: %q, want %s", head, tt.status)
			}
			if tt.name == "listed origin" {
				return // for the app listener only
			}
			req, err := http.NewRequest(http.MethodGet, "http://"+r.admin+"/v1/status", nil)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.SplitSeq(strings.TrimSpace(tt.fields), "\n") {
				name, v, _ := strings.Cut(line, ": ")
				if req.Header.Set(name, v); name == "Host" {
					req.Host = v
				}
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if (resp.StatusCode == 200) != (tt.status == "200") {
				t.Errorf("admin listener: %d, want like %s", resp.StatusCode, tt.status)
			}
		})
	}
	for len(heads) > 0 {
		if head := <-heads; strings.Contains(head, "evil") || strings.Contains(head, "null") {
			t.Errorf("forwarded %q", head)
		}
	}
}

func TestStateChangingAdminCallsNeedTheToken(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	r := start(t, addr, "")
	for _, fields := range []http.Header{
		{"Content-Type": {"text/plain"}, "Origin": {"http://evil.example"}},
		{"Content-Type": {"application/json"}},
		{"Content-Type": {"application/json"}, "Authorization": {"Bearer wrong"}},
	} {
		req, _ := http.NewRequest(http.MethodPost, "http://"+r.admin+"/v1/quit", strings.NewReader("{}"))
		req.Header = fields
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode/100 != 4 {
			t.Errorf("%v: %d", fields, resp.StatusCode)
		}
	}
	if !strings.Contains(r.get("/readyz"), "ready") {
		t.Error("it quits")
	}
}

func TestLoopsAndForbiddenTargets(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	r := start(t, addr, "forward: {deny: ['denied.test', '10.0.0.0/8']}\n")
	tests := []struct{ name, request, status string }{
		{"ourselves by absolute form", "GET http://" + r.addr + "/x HTTP/1.1\nHost: x\n\n", "508"},
		{"ourselves by CONNECT", "CONNECT " + r.addr + " HTTP/1.1\nHost: x\n\n", "508"},
		{"our admin listener", "CONNECT " + r.admin + " HTTP/1.1\nHost: x\n\n", "508"},
		{"metadata", "GET http://169.254.169.254/latest/ HTTP/1.1\nHost: x\n\n", "403"},
		{"metadata by CONNECT", "CONNECT 169.254.169.254:80 HTTP/1.1\nHost: x\n\n", "403"},
		{"metadata over IPv6", "CONNECT [fd00:ec2::254]:80 HTTP/1.1\nHost: x\n\n", "403"},
		{"link-local", "CONNECT [fe80::1]:80 HTTP/1.1\nHost: x\n\n", "403"},
		{"mapped metadata", "CONNECT [::ffff:169.254.169.254]:80 HTTP/1.1\nHost: x\n\n", "403"},
		{"denied name", "GET http://Denied.Test./ HTTP/1.1\nHost: x\n\n", "403"},
		{"denied prefix", "CONNECT 10.1.2.3:443 HTTP/1.1\nHost: x\n\n", "403"},
		{"loopback is fine", "GET http://" + addr + "/x HTTP/1.1\nHost: x\n\n", "200"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			app := r.dial()
			app.Send(tt.request)
			if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 "+tt.status+" ") {
				t.Errorf("%q, want %s", head, tt.status)
			}
		})
	}
}

func TestTwoWarmwiresThatPointAtEachOther(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := ln.Addr().String()
	_ = ln.Close()
	a := start(t, other, "upstreams:\n  up: {url: 'http://UPSTREAM/up'}\n")
	start(t, a.addr, "listen: {address: '"+other+"'}\nupstreams:\n  up: {url: 'http://UPSTREAM/up'}\n")
	for _, upgrade := range []string{"", "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n"} {
		app := a.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\n" + upgrade + "\n")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 508 ") {
			t.Errorf("%q, want 508", head)
		}
	}
}

// asNobody runs curl as another user; it returns the status that it saw.
func asNobody(t *testing.T, args ...string) string {
	t.Helper()
	testenv.NeedRoot(t)
	cmd := exec.Command(testenv.Need(t, "curl"), append([]string{"-s", "-o", "/dev/null", "-w", "%{http_code} %{http_connect}", "-m", "5"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	out, _ := cmd.Output() // curl fails where the proxy refuses; the status says so
	return string(out)
}

func TestInjectedCredentialsServeTheirUserOnly(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	const set = "upstreams:\n  up: {url: 'http://UPSTREAM', headers: {set: {Authorization: Bearer x}}}\n  open: {url: 'http://UPSTREAM'}\n"
	r := start(t, addr, set)
	url := "http://" + r.addr
	app := r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Errorf("the user who runs it: %q", head)
	}
	if got := asNobody(t, url+"/up/x"); got != "403 000" {
		t.Errorf("another user: %q", got)
	}
	if got := asNobody(t, "-x", url, "http://"+addr+"/x"); got != "403 000" {
		t.Errorf("another user, proxy form: %q", got)
	}
	if got := asNobody(t, url+"/open/x"); got != "200 000" {
		t.Errorf("another user, nothing injected: %q", got)
	}
	listed := start(t, addr, "listen: {address: 127.0.0.1:0, allow_uids: [65534]}\n"+set)
	if got := asNobody(t, "http://"+listed.addr+"/up/x"); got != "200 000" {
		t.Errorf("a listed user: %q", got)
	}
	token := start(t, addr, "listen: {address: 127.0.0.1:0, token: t0ken}\n"+set)
	url = "http://" + token.addr
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{url + "/up/x"}, "401 000"},
		{[]string{"-H", "Warmwire-Token: t0ken", url + "/up/x"}, "200 000"},
		{[]string{"-H", "Warmwire-Token: wrong", url + "/up/x"}, "401 000"},
		{[]string{"-x", url, "http://" + addr + "/x"}, "407 000"},
		{[]string{"-x", url, "-U", "any:t0ken", "http://" + addr + "/x"}, "200 000"},
		{[]string{"-x", url, "-p", "http://" + addr + "/x"}, "000 407"},
		{[]string{"-x", url, "-p", "-U", "any:t0ken", "--proxy-anyauth", "http://" + addr + "/x"}, "200 200"}, // 407 first, then again
	} {
		if got := asNobody(t, tt.args...); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.args, got, tt.want)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	path := t.TempDir() + "/w.sock"
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = stale.Close() // leaves the file, as a killed process does
	r := start(t, addr, "listen: {address: 'unix:"+path+"'}\nupstreams:\n  up: {url: 'http://UPSTREAM', headers: {set: {X: y}}}\n")
	if out, err := exec.Command(testenv.Need(t, "curl"), "-s", "--unix-socket", path, "http://localhost/up/x").Output(); string(out) != "ok" {
		t.Errorf("curl: %q, %v", out, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	r.stop()
}

// TestASocketFileOfAnother is not removed: where the file of a running Warmwire was, one that
// is started meanwhile binds its own. An upgrade amid it passes the socket on as one whose
// file stays.
func TestASocketFileOfAnother(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	dir := t.TempDir()
	more := "listen: {address: 'unix:" + dir + "/w'}\nadmin: {address: 'unix:" + dir + "/a'}\n"
	files := []string{dir + "/w", dir + "/a"}
	first := start(t, addr, more)
	passes := func(r *rig) (foreign int) {
		stay := errors.New("not now")
		if err := r.s.HandOver(func(passed []activation.Passed, _ config.Over) error {
			for _, p := range passed {
				if p.Foreign {
					foreign++
				}
			}
			return stay
		}); !errors.Is(err, stay) {
			t.Error(err)
		}
		return foreign
	}
	if n := passes(first); n != 0 {
		t.Errorf("%d sockets are passed on as another's", n)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	second := start(t, addr, more)
	if n := passes(first); n != len(files) {
		t.Errorf("%d sockets without a file are passed on as such, want %d", n, len(files))
	}
	first.stop()
	for _, file := range files {
		c, err := net.Dial("unix", file)
		if err != nil {
			t.Errorf("the second one cannot be reached: %v", err)
			continue
		}
		_ = c.Close()
	}
	second.stop()
	for _, file := range files {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stays: %v", file, err)
		}
	}
}

func TestConnectionLimit(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	r := start(t, addr, "limits: {connections: 2}\n")
	var held []*testenv.Raw
	for range 2 {
		app := r.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
		app.Head()
		held = append(held, app)
	}
	over := r.dial()
	if head := over.Head(); !strings.HasPrefix(head, "HTTP/1.1 503 ") || !strings.Contains(head, "Retry-After: 1\n") {
		t.Errorf("over the limit: %q", head)
	}
	if rest, _ := over.Rest(); !strings.HasPrefix(rest, `{"error":`) || !strings.HasSuffix(rest, "}") {
		t.Errorf("body %q", rest)
	}
	_ = held[0].Close()
	deadline := time.Now().Add(patience)
	for {
		app := r.dial()
		_, _ = fmt.Fprintf(app.TCPConn, "GET /up/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if strings.HasPrefix(app.Head(), "HTTP/1.1 200 ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a freed slot is not used")
		}
	}
}

func TestShutdownOverHTTP2(t *testing.T) {
	release := make(chan struct{})
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		path := strings.Fields(c.Head() + " - -")[1]
		c.SendExact(sse + chunk("data: 1\n\n"))
		if path == "/short" {
			<-release
			c.SendExact(chunk("data: 2\n\n") + "0\r\n\r\n")
		}
		_, _ = io.Copy(io.Discard, c.In)
	})
	r := start(t, addr, "drain: {timeout: 300ms}\n")
	client := h2c(t)
	short, err := client.Get("http://" + r.addr + "/up/short")
	if err != nil {
		t.Fatal(err)
	}
	long, err := client.Get("http://" + r.addr + "/up/long")
	if err != nil {
		t.Fatal(err)
	}
	r.cancel()
	for !strings.Contains(r.get("/readyz"), "draining") {
	}
	close(release)
	if b, err := io.ReadAll(short.Body); string(b) != "data: 1\n\ndata: 2\n\n" || err != nil {
		t.Errorf("the short stream: %q, %v", b, err)
	}
	if b, err := io.ReadAll(long.Body); err == nil || string(b) != "data: 1\n\n" {
		t.Errorf("the long stream: %q, %v; want a visible cut", b, err)
	}
	r.stop()
}

func TestKubernetesJobEndsByQuit(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	r := start(t, addr, "")
	cfg := r.get("/v1/status")
	if !strings.Contains(cfg, `"ready"`) {
		t.Errorf("status %s", cfg)
	}
	token, err := os.ReadFile(r.state + "/admin.token")
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+r.admin+"/v1/quit", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Errorf("quit: %s", resp.Status)
	}
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		r.done <- nil // for stop
	case <-time.After(patience):
		t.Error("it does not end")
	}
}
