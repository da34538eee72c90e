// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestIdleLimitsOutliveTheProcess lets a server close an idle connection: the next
// process knows from its start how long the server waits.
func TestIdleLimitsOutliveTheProcess(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.IdleTimeout = 5500 * time.Millisecond
	srv.Start()
	defer srv.Close()
	addr, state := srv.Listener.Addr().String(), t.TempDir()
	first := startIn(t, state, addr, "")
	if status, body := first.call("/up/x"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	first.metric(`warmwire_upstream_connections{protocol="HTTP/1.1",upstream="up"} 0`)
	if page := first.get("/v1/status"); !strings.Contains(page, `"idle_limit"`) {
		t.Fatalf("nothing was learned: %s", page)
	}
	first.stop()
	second := startIn(t, state, addr, "")
	if status, body := second.call("/up/x"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if page := second.get("/v1/status"); !strings.Contains(page, `"idle_limit"`) {
		t.Errorf("nothing is known after a restart: %s", page)
	}
	second.stop()
	file := filepath.Join(state, "idle.limits")
	for _, garbage := range []string{"", "{", `{"version": 2}`, `{"version":1,"idle":{"a":{"limit":"x"},"b":{"limit":"-1s"}}}`} {
		if err := os.WriteFile(file, []byte(garbage), 0o600); err != nil {
			t.Fatal(err)
		}
		third := startIn(t, state, addr, "")
		if status, body := third.call("/up/x"); status != http.StatusOK {
			t.Fatalf("with %q: %d %s", garbage, status, body)
		}
		if page := third.get("/v1/status"); strings.Contains(page, `"idle_limit"`) {
			t.Errorf("learned from %q", garbage)
		}
		third.stop()
	}
}
