// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stream begins a streamed answer through Warmwire and returns once the first bytes are
// there; the rest is left unread until the test ends.
func (s *stage) stream(t *testing.T, name, faults string) io.ReadCloser {
	t.Helper()
	close(s.begin(name).first)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.origin+"/openai/v1/chat/completions",
		strings.NewReader(fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hello"}]}`, "mock?"+faults)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+name)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if _, err := bufio.NewReaderSize(resp.Body, 16).ReadByte(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %v", resp.StatusCode, err)
	}
	return resp.Body
}

// TestDashboard opens the page at the admin root in a browser while streams run, one of
// them with an app that does not read: the page names it. Then it changes a setting by
// keyboard, and undoes that. Nothing is asked of anybody else, and nothing is refused by
// the page's own policy.
func TestDashboard(t *testing.T) {
	t.Parallel()
	s := newStage(t, settings{})
	for i := range 20 {
		s.stream(t, fmt.Sprint("short-", i), "tokens=5&gap=5ms")
	}
	s.stream(t, "steady", "tokens=1000000&gap=100ms")
	slow := s.stream(t, "slow", "tokens=2&gap=2500ms")
	unread := s.stream(t, "unread", "tokens=1000000&gap=0s&size=4000")
	secret, err := os.ReadFile(filepath.Join(s.state, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}

	b := openTab(t, s.admin+"/", 1280, 900)
	b.await(text("#live"), "live")
	b.await(text("#ready"), "ready")
	b.await(text("#stream-table tbody"), "openai")
	b.await(text("#finding-list"), "Slow reader")
	b.await(text("#upstream-table tbody"), "warm")
	b.await(text("#upstream-table tbody"), " ms") // a round trip
	b.await(text("#upstream-table tbody"), "alive")
	b.await(text("#say-requests"), "finished since the start")
	b.await(text("#say-ttft"), "99 of 100 within")
	b.await("document.querySelectorAll('#chart-ttft canvas').length", "1")
	if _, err := io.Copy(io.Discard, slow); err != nil {
		t.Fatal(err)
	}
	_ = unread.Close() // its app has enough
	b.await(text("#request-table tbody"), "Slow provider")
	b.eval("(() => { const e = document.getElementById('request-list'); e.value = 'interrupted'; e.dispatchEvent(new Event('change')) })()")
	b.await(text("#request-table tbody"), "Slow reader")
	b.shot("dashboard")

	set := func(id, value string) {
		b.eval(fmt.Sprintf("(() => { const e = document.getElementById(%q); e.value = %q; e.dispatchEvent(new Event('change')); e.dispatchEvent(new Event('input')) })()", id, value))
	}
	b.await("document.getElementById('setting-scope').options.length > 3", "true")
	set("setting-scope", "openai")
	set("setting-key", "heartbeat.max_interval")
	b.await(text("#setting-doc"), "default")
	set("setting-value", "90 bananas")
	set("setting-token", strings.TrimSpace(string(secret)))
	b.press("#setting-value", "Enter", 13)
	b.await(text("#setting-result"), "heartbeat.max_interval")
	if got := b.eval("document.getElementById('apply').disabled"); got != "true" {
		t.Errorf("a value that is none can be applied")
	}
	set("setting-value", "90s")
	b.press("#setting-value", "Enter", 13)
	b.await(text("#setting-result"), "→ 1m30s")
	b.await(text("#setting-result"), "none is cut")
	b.press("#apply", "Enter", 13)
	b.await(text("#setting-result"), "is 1m30s now")
	if page := s.page(t, "/v1/settings"); !strings.Contains(page, `"upstreams.openai.heartbeat.max_interval": "90s"`) {
		t.Errorf("the setting is not in force")
	}
	b.shot("settings")
	b.press("#undo", "Enter", 13)
	b.await(text("#setting-result"), "again")
	if page := s.page(t, "/v1/settings"); strings.Contains(page, `"90s"`) {
		t.Errorf("the setting is still in force")
	}
	if page := b.eval("document.documentElement.outerHTML"); strings.Contains(page, strings.TrimSpace(string(secret))) {
		t.Error("the token is in the page")
	}
	for _, said := range b.said {
		if !strings.Contains(said, "90+bananas") { // the browser tells of each answer with 422
			t.Errorf("the page said %s", said)
		}
	}
	others := b.eval("performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith(location.origin + '/')).join()")
	if others != "" {
		t.Errorf("the page asked %s", others)
	}

	// A narrow screen in the dark: nothing is wider than it, beside tables that scroll.
	narrow := openTab(t, s.admin+"/", 360, 740, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
	narrow.await(text("#stream-table tbody"), "openai")
	if got := narrow.eval("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
		t.Errorf("the page is %s px wide on a screen of %s", narrow.eval("document.documentElement.scrollWidth"), narrow.eval("innerWidth"))
	}
	narrow.shot("narrow")
}
