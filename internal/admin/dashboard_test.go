// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// TestDashboardIsForBrowsers has the page and all it loads served with its policy, and the
// list of paths for those who do not ask for a page.
func TestDashboardIsForBrowsers(t *testing.T) {
	a, err := New(Config{Ready: func() error { return nil }, Metrics: http.NotFoundHandler(), Status: func() any { return nil }, Streams: func() any { return nil }, Quit: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Host = "localhost"
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w
	}
	a.cfg.TrustPeer = func(*http.Request) bool { return true } // the address of a test is no loopback
	page := get("/", "text/html,application/xhtml+xml")
	if page.Code != http.StatusOK || page.Header().Get("Content-Security-Policy") != pagePolicy || !strings.HasPrefix(page.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("%d %v", page.Code, page.Header())
	}
	loads := regexp.MustCompile(`(?:src|href)="(/dashboard/[^"]+)"`).FindAllStringSubmatch(page.Body.String(), -1)
	if len(loads) != 4 {
		t.Errorf("the page loads %v", loads)
	}
	kinds := map[string]string{".js": "text/javascript", "css": "text/css"}
	for _, m := range loads {
		w := get(m[1], "*/*")
		if want := kinds[m[1][len(m[1])-3:]]; w.Code != http.StatusOK || w.Body.Len() == 0 || !strings.HasPrefix(w.Header().Get("Content-Type"), want) {
			t.Errorf("%s: %d %v", m[1], w.Code, w.Header())
		}
	}
	for _, accept := range []string{"", "*/*", "application/json"} {
		if w := get("/", accept); w.Body.String() != indexText || strings.Contains(w.Header().Get("Content-Security-Policy"), "script") {
			t.Errorf("with Accept %q: %v %.40s", accept, w.Header(), w.Body)
		}
	}
	for _, path := range []string{"/dashboard/", "/dashboard/index.html", "/dashboard/../admin.go", "/dashboard"} {
		if w := get(path, "text/html"); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}
