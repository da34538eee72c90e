// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

// A tab is a page in a headless browser, driven by its DevTools protocol.
type tab struct {
	t    *testing.T
	conn *websocket.Conn
	id   int
	said []string // by the page's console, and what it refused to load
}

var devtools = regexp.MustCompile(`DevTools listening on ws://([^/]+)/`)

// openTab starts a browser without proxy and opens address in it.
func openTab(t *testing.T, address string, width, height int, more ...string) *tab {
	t.Helper()
	program := testenv.Need(t, "chromium-headless-shell")
	args := append([]string{"--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--no-proxy-server",
		"--remote-debugging-port=0", "--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,%d", width, height)}, more...)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, append(args, "about:blank")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
	})
	lines := bufio.NewReader(stderr)
	var port string
	for port == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the browser says %q and %v", line, err)
		}
		if m := devtools.FindStringSubmatch(line); m != nil {
			port = m[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }() // until it is killed
	var pages []struct {
		Type, WebSocketDebuggerURL string
	}
	resp, err := http.Get("http://" + port + "/json/list")
	if err == nil {
		defer resp.Body.Close()
		err = json.NewDecoder(resp.Body).Decode(&pages)
	}
	if err != nil || len(pages) == 0 {
		t.Fatalf("the browser has no page: %v", err)
	}
	conn, _, err := websocket.DefaultDialer.DialContext(t.Context(), pages[0].WebSocketDebuggerURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	b := &tab{t: t, conn: conn}
	b.call("Runtime.enable", nil)
	b.call("Log.enable", nil)
	b.call("Page.enable", nil)
	b.call("Page.navigate", map[string]any{"url": address})
	return b
}

// call makes one call and returns its result.
func (b *tab) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.id++
	if params == nil {
		params = struct{}{}
	}
	_ = b.conn.SetReadDeadline(time.Now().Add(patience))
	if err := b.conn.WriteJSON(map[string]any{"id": b.id, "method": method, "params": params}); err != nil {
		b.t.Fatal(err)
	}
	for {
		var m struct {
			ID             int
			Method         string
			Params, Result json.RawMessage
			Error          *struct{ Message string }
		}
		if err := b.conn.ReadJSON(&m); err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		switch {
		case m.Method == "Log.entryAdded" || m.Method == "Runtime.exceptionThrown":
			b.said = append(b.said, string(m.Params))
		case m.ID != b.id:
		case m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		default:
			return m.Result
		}
	}
}

// eval is the value of an expression in the page; a promise is awaited.
func (b *tab) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Text string }
	}
	if err := json.Unmarshal(b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}), &r); err != nil {
		b.t.Fatal(err)
	}
	if r.ExceptionDetails != nil {
		return "exception: " + r.ExceptionDetails.Text
	}
	return fmt.Sprint(r.Result.Value)
}

// await waits until the value of expression contains want.
func (b *tab) await(expression, want string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := b.eval(expression)
		if strings.Contains(got, want) {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s is %q, want %q; the page said %q", expression, got, want, b.said)
		}
		b.eval("new Promise((f) => setTimeout(f, 50))")
	}
}

// text is what a reader sees of an element.
func text(selector string) string {
	return fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector)
}

// press focuses an element and presses a key, as a person without a mouse does.
func (b *tab) press(selector, key string, code int) {
	b.t.Helper()
	b.eval(fmt.Sprintf("document.querySelector(%q).focus()", selector))
	for _, kind := range []string{"rawKeyDown", "char", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": map[bool]string{true: "\r"}[key == "Enter"]})
	}
}

// shot saves a picture for people, in the folder that E2E_SHOTS names.
func (b *tab) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("E2E_SHOTS")
	if dir == "" {
		return
	}
	var r struct{ Data string }
	if err := json.Unmarshal(b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}), &r); err != nil {
		b.t.Fatal(err)
	}
	picture, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
