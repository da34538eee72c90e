// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// startDnsmasq runs a resolver that knows api.model.test, for a second at a time.
func startDnsmasq(t *testing.T) (port string, stop func()) {
	t.Helper()
	program := testenv.Need(t, "dnsmasq")
	ports := testenv.FreePorts(t, 1)
	port = strconv.Itoa(ports[0])
	cmd := exec.Command(program, "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=", "--no-resolv", "--no-hosts",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--port="+port, "--local=/model.test/", "--host-record=api.model.test,127.0.0.1,1")
	return port, testenv.Run(t, cmd, ports...)
}

// A configured host is looked up once, works while its resolver is dead and its
// TTL is over, and after a restart without any lookup.
func TestNamesOutliveTheirResolver(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	t.Cleanup(up.Close)
	_, upPort, _ := net.SplitHostPort(up.Listener.Addr().String())
	port, stopResolver := startDnsmasq(t)
	dir := t.TempDir()
	more := fmt.Sprintf("upstreams:\n  up: {url: 'http://api.model.test:%s', pool: {warm: 0, idle_timeout: 1ms}}\n"+
		"dns: {mode: resolvers_only, resolvers: ['udp://127.0.0.1:%s'], cache_file: %s}\n", upPort, port, filepath.Join(dir, "dns.cache"))
	call := func(r *rig) string {
		t.Helper()
		status, body := r.call("/up/v1/models")
		return fmt.Sprintf("%d %s", status, body)
	}
	first := start(t, up.Listener.Addr().String(), more)
	if got := call(first); got != "200 here" {
		t.Fatal(got)
	}
	stopResolver()
	over := time.NewTimer(1500 * time.Millisecond) // of the TTL; dnsmasq has its own clock
	defer over.Stop()
	<-over.C
	if got := call(first); got != "200 here" {
		t.Errorf("without its resolver: %s", got)
	}
	first.metric(`warmwire_dns_lookups_total{result="stale"} 1`)
	if st := first.get("/v1/status"); !strings.Contains(st, `"api.model.test"`) || !strings.Contains(st, `"stale": true`) && !strings.Contains(st, `"stale":true`) {
		t.Errorf("status does not show the name: %s", st)
	}
	first.stop()

	second := start(t, up.Listener.Addr().String(), more)
	if got := call(second); got != "200 here" {
		t.Errorf("after a restart: %s", got)
	}
	if page := second.get("/metrics"); strings.Contains(page, `warmwire_dns_lookups_total{result="miss"}`) {
		t.Error("the first request after a restart waited for a lookup")
	}
}

// A name that cannot be resolved is told as such, and a flush forgets.
func TestFlushForgets(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	t.Cleanup(up.Close)
	up.Config.SetKeepAlivesEnabled(false) // each request looks the name up
	_, upPort, _ := net.SplitHostPort(up.Listener.Addr().String())
	port, stopResolver := startDnsmasq(t)
	r := start(t, up.Listener.Addr().String(), fmt.Sprintf("upstreams:\n  up: {url: 'http://api.model.test:%s', pool: {warm: 0}}\n"+
		"dns: {mode: resolvers_only, resolvers: ['udp://127.0.0.1:%s'], cache_file: none}\n", upPort, port))
	get := func() int {
		t.Helper()
		status, _ := r.call("/up/v1/models")
		return status
	}
	if got := get(); got != 200 {
		t.Fatal(got)
	}
	stopResolver()
	if status, b := r.post("/v1/dns/flush?name=" + url.QueryEscape("api.model.test")); status != 200 || !strings.Contains(b, "api.model.test") {
		t.Fatalf("%d %s", status, b)
	}
	if got := get(); got != 502 && got != 504 {
		t.Errorf("a flushed name without a resolver: %d", got)
	}
}
