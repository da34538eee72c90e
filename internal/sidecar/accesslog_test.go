// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/sidecar"
)

// TestTraceContextPasses: what the app says about its trace reaches the upstream
// as it was sent, on both ways in; nothing is made up; the id is in the record.
func TestTraceContextPasses(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, tt := range []struct {
		name    string
		send    []string // lines
		logged  string   // "" = none
		forward bool
	}{
		{name: "none"},
		{name: "parent and states", send: []string{"Traceparent: " + parent, "Tracestate: ot=th:8;rv:0f,a=b", "Tracestate: c@d=e f"}, logged: parent[3:35]},
		{name: "through the proxy form", send: []string{"Traceparent: " + parent, "Tracestate: a=b"}, logged: parent[3:35], forward: true},
		{name: "of a later version", send: []string{"Traceparent: cc" + parent[2:] + "-more"}, logged: parent[3:35]},
		{name: "state alone", send: []string{"Tracestate: a=b"}},
		{name: "no traceparent", send: []string{"Traceparent: 00-sk-PLANTED"}},
		{name: "in capitals", send: []string{"Traceparent: " + strings.ToUpper(parent)}},
		{name: "of zeros", send: []string{"Traceparent: 00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up, heads := answering(t, okAnswer)
			r := start(t, up, "log: {access: {sample: 1, format: json}}\n")
			c := r.dial()
			target := "/up/v1/models"
			if tt.forward {
				target = "http://" + up + "/v1/models"
			}
			c.Send("GET " + target + " HTTP/1.1\nHost: " + r.addr + "\n" + strings.Join(append(tt.send, "\n"), "\n"))
			if head := c.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
				t.Fatalf("answer %q", head)
			}
			var got []string
			for line := range strings.Lines(<-heads) {
				if strings.HasPrefix(strings.ToLower(line), "trace") {
					got = append(got, strings.TrimSpace(line))
				}
			}
			// The order of lines with the same name is what counts (RFC 9110 §5.3).
			slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:len("tracestate")], b[:len("tracestate")]) })
			if !slices.Equal(got, tt.send) {
				t.Errorf("the upstream got %q, the app sent %q", got, tt.send)
			}
			r.stop()
			if records := requests(t, r.log.String()); len(records) != 1 || field(records[0], "trace_id") != tt.logged {
				t.Errorf("records %v, want one with the trace %q", records, tt.logged)
			}
			if strings.Contains(r.log.String(), "PLANTED") {
				t.Errorf("the log has what the app sent: %s", r.log)
			}
		})
	}
}

// requests are the lines about requests in a log that has others, in text, too.
func requests(t *testing.T, log string) []map[string]any {
	t.Helper()
	var list []map[string]any
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `"msg":"request"`) {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, m)
	}
	return list
}

func field(m map[string]any, name string) string {
	s, _ := m[name].(string)
	return s
}

// TestAccessLogFile: it has the records and the summary, the log has the rest; a
// reload opens it again, even one that fails.
func TestAccessLogFile(t *testing.T) {
	up, _ := answering(t, okAnswer)
	path := filepath.Join(t.TempDir(), "access.log")
	more := "log: {level: error, access: {sample: 1, format: json, summary: 1h, file: " + path + "}}\n"
	r := start(t, up, more)
	call := func() {
		if status, _ := r.call("/up/v1/models?key=PLANTED"); status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	rotate := func(to string) {
		deadline := time.Now().Add(patience)
		for len(requests(t, readFile(t, path))) == 0 { // the record comes after the answer
			if runtime.Gosched(); time.Now().After(deadline) {
				t.Fatal("no record")
			}
		}
		if err := os.Rename(path, path+to); err != nil {
			t.Fatal(err)
		}
	}
	call()
	rotate(".1")
	if err := r.s.Reload(); err != nil {
		t.Fatal(err)
	}
	call()
	rotate(".2")
	r.write(up, more+"nonsense: 1\n")
	if r.s.Reload() == nil {
		t.Fatal("nonsense was taken")
	}
	call()
	r.stop()
	for _, name := range []string{".1", ".2", ""} {
		text := readFile(t, path+name)
		if got := requests(t, text); len(got) != 1 || field(got[0], "upstream") != "up" {
			t.Errorf("%s has %v, want one request", name, got)
		}
		if strings.Contains(text, "PLANTED") {
			t.Errorf("the file has a secret: %s", text)
		}
	}
	if got := strings.Count(readFile(t, path), `"msg":"summary","upstream":"up","outcome":"ok"`); got != 1 {
		t.Errorf("%d summaries, want one at the end", got)
	}
	if got := r.log.String(); got != "" {
		t.Errorf("the log has %s", got)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAccessLogFileThatCannotBe: at the start an error that names the key, at a
// reload a warning, and the log goes on as it was.
func TestAccessLogFileThatCannotBe(t *testing.T) {
	up, _ := answering(t, okAnswer)
	bad := "log: {access: {sample: 1, file: " + t.TempDir() + "/none/access.log}}\n"
	r := start(t, up, "log: {access: {sample: 1, summary: 0s}}\n")
	r.write(up, bad)
	cfg, _, err := config.Load(r.file, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listen.Addresses = []string{"127.0.0.1:0"}
	if _, err := sidecar.New(cfg, sidecar.Options{}); err == nil || !strings.Contains(err.Error(), "log.access.file: ") {
		t.Errorf("New = %v, want an error that names log.access.file", err)
	}
	if err := r.s.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, body := r.call("/up/"); body != "ok" {
		t.Errorf("answer %q", body)
	}
	r.stop()
	if log := r.log.String(); strings.Count(log, "log.access.file") != 1 || strings.Count(log, "msg=request ") != 1 {
		t.Errorf("log:\n%s", log)
	}
}

// TestAFullLogDiskCostsNoRequest: each is answered, and what is lost is counted
// and told.
func TestAFullLogDiskCostsNoRequest(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	up, _ := answering(t, okAnswer)
	r := start(t, up, "log: {access: {sample: 1, summary: 1s, file: /dev/full}}\n")
	for range 90 {
		if status, body := r.call("/up/"); status != http.StatusOK || body != "ok" {
			t.Fatalf("status %d, %q", status, body)
		}
	}
	r.stop()
	log := r.log.String()
	if strings.Count(log, "access log cannot be written") != 1 || !strings.Contains(log, "no space left on device") || strings.Count(log, "dropped=90") != 1 {
		t.Errorf("log:\n%s", log)
	}
}
