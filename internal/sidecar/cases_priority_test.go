// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// startHTTP2 runs a plain HTTP/2 server.
func startHTTP2(t testing.TB, h http.Handler) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// prioritised makes a call that says its class, "" for none.
func (r *rig) prioritised(path, class string) (status int, body string) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+r.addr+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if class != "" {
		req.Header.Set("Warmwire-Priority", class)
	}
	return r.do(req)
}

// tune changes a setting of the running process.
func (r *rig) tune(path, value string) {
	r.t.Helper()
	if status, body := r.post("/v1/tune?" + path + "=" + url.QueryEscape(value)); status != http.StatusOK {
		r.t.Fatalf("tune %s: %d %s", path, status, body)
	}
}

// TestTheUpstreamHearsTheClassOfEachRequest looks at what a real HTTP/2 server is told
// (RFC 9218) of requests on one connection.
func TestTheUpstreamHearsTheClassOfEachRequest(t *testing.T) {
	up := startHTTP2(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%q %q", r.Header.Values("Priority"), r.Header.Values("Warmwire-Priority"))
	}))
	r := start(t, up, "defaults: {protocols: [h2], pool: {warm: 0}, classes: [{path: /v1/batches*, class: batch}]}\n")
	check := func(path, class, want string) {
		t.Helper()
		if status, body := r.prioritised(path, class); status != 200 || body != want {
			t.Errorf("%s as %q: %d %s, want %s", path, class, status, body, want)
		}
	}
	check("/up/v1/chat", "", `[] []`)
	check("/up/v1/chat", "interactive", `["u=1, i"] []`)
	check("/up/v1/chat", "batch", `["u=6"] []`)
	check("/up/v1/batches/1", "", `["u=6"] []`)
	check("/up/v1/batches/1", "interactive", `["u=1, i"] []`)

	r.tune("upstreams.up.priority", "interactive")
	r.tune("upstreams.up.classes", "[{path: /v1/x, class: batch}]")
	check("/up/v1/chat", "", `["u=1, i"] []`)
	check("/up/v1/x", "", `["u=6"] []`)
	check("/up/v1/batches/1", "", `["u=1, i"] []`)
	if n := strings.Count(r.get("/v1/status"), `"protocol": "h2"`); n != 1 {
		t.Errorf("%d connections, want 1: classes are changed without new ones", n)
	}
}

func TestAPriorityThatIsNoneIsRefusedInTheDialectsShape(t *testing.T) {
	up := startHTTP2(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") }))
	r := start(t, up, "")
	status, body := r.prioritised("/up/v1/chat", "urgent")
	if status != 400 || !strings.Contains(body, `"code":"bad_priority"`) || !strings.Contains(body, "interactive, default, batch") {
		t.Errorf("%d %s", status, body)
	}
	r.metric(`warmwire_refused_requests_total{reason="bad_priority"} 1`)
}
