// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/warmwire/warmwire/internal/mockapi"
)

// measureMock starts a mock API and returns its plain address.
func measureMock(t *testing.T) string {
	t.Helper()
	api, err := mockapi.New(mockapi.Config{TLSAddr: "off"})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := api.Run(ctx); err != nil {
			t.Errorf("the mock API: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return api.URL()
}

// runMeasure runs the command and returns what it printed.
func runMeasure(args ...string) (string, error) {
	cmd := measureCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.Args = usageArgs(cmd.Args)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestMeasureDirectAndThrough(t *testing.T) {
	base := measureMock(t)
	plot := filepath.Join(t.TempDir(), "plot.svg")
	if err := os.WriteFile(plot, bytes.Repeat([]byte("old"), 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{base + "/v1/chat/completions?key=planted", "--through", base, "--model", "mock?tokens=4&ttft=2ms&gap=1ms",
		"-n", "10", "--concurrency", "2", "--goodput", "ttft=10s", "--header", "Authorization: planted", "--plot", plot, "--seed", "7"}
	out, err := runMeasure(args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"through  " + base + "/v1/chat/completions\n", "TTFT", "TPOT", "ICL", "phase wait", "ratio p50", "goodput/s", "(100 %)", "seed 7"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	svg, err := os.ReadFile(plot)
	if err != nil || !bytes.HasPrefix(svg, []byte("<svg")) || !bytes.HasSuffix(svg, []byte("</svg>\n")) {
		t.Errorf("plot: %v, %d bytes", err, len(svg))
	}
	machine, err := runMeasure(append(args, "--json")...)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Summary struct {
			Legs map[string]struct {
				Calls        int
				Milliseconds map[string]struct{ P50 float64 }
			}
			Ratio map[string]map[string]struct{ Value float64 } `json:"ratio_through_by_direct"`
		}
	}
	if err := json.Unmarshal([]byte(machine), &report); err != nil {
		t.Fatal(err)
	}
	s := report.Summary
	if s.Legs["through"].Calls != 10 || s.Legs["direct"].Milliseconds["ttft"].P50 < 2 || s.Ratio["ttft"]["p50"].Value <= 0 {
		t.Errorf("report %+v", s)
	}
	if strings.Contains(out+machine+string(svg), "planted") {
		t.Error("a header or query value is shown")
	}
}

func TestMeasureCountsFailures(t *testing.T) {
	base := measureMock(t)
	out, err := runMeasure(base+"/v1/chat/completions", "-n", "3", "--model", "mock?status=503")
	if err == nil || errors.Is(err, errUsage) || !strings.Contains(out, "direct: 3 × status: HTTP 503") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = runMeasure(base+"/v1/chat/completions", "-n", "3", "--model", "mock?tokens=9&cut=3")
	words := strings.Join(strings.Fields(out), " ")
	if err == nil || !strings.Contains(words, " missing_end 3 ") || !strings.Contains(words, " interruptions 3 ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMeasureFitsTheCurve(t *testing.T) {
	// A model that answers at once, however long the answer: nothing that the curve could be fitted to.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Limit    int `json:"max_completion_tokens"`
			Messages []struct{ Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
			return
		}
		prompt := len(strings.Fields(req.Messages[0].Content))
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"+
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", prompt, req.Limit)
	}))
	defer server.Close()
	grid := []string{server.URL + "/v1/chat/completions", "--fit", "-n", "2", "--seed", "1"}
	out, err := runMeasure(append(grid, "--grid-context", "20,60,180", "--grid-output", "2,8")...)
	if err != nil || !strings.Contains(out, "95 % interval") || !strings.Contains(out, "12 calls, 3 contexts, 2 outputs") || !strings.Contains(out, "not supported by the data") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = runMeasure(append(grid, "--grid-context", "20,60", "--grid-output", "2,8")...)
	if err == nil || !strings.Contains(err.Error(), "distinct context lengths: 2, want at least 3") || !strings.Contains(out, "TTFT") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMeasureRefusesBadCommandLines(t *testing.T) {
	const chat = "http://127.0.0.1:1/v1/chat/completions"
	for _, args := range [][]string{
		{}, {chat, "extra"}, {"api.test"}, {"http://127.0.0.1:1/other"}, {chat, "--api", "smtp"}, {"ftp://127.0.0.1/v1/messages"},
		{"http://user:planted@127.0.0.1:1/v1/messages"}, {chat, "--header", "planted"}, {chat, "--key-env", "WARMWIRE_TEST_UNSET"},
		{chat, "--dns", "doh"}, {chat, "--tls", "half"}, {chat, "--tls", ""}, {chat, "--tls", "full"}, {chat, "--ca-file", "missing.pem"},
		{chat, "--requests", "0"}, {chat, "--concurrency", "0"}, {chat, "--rate", "0"}, {chat, "--rate", "NaN"}, {chat, "--timeout", "0s"},
		{chat, "--rate", "1", "--concurrency", "2"}, {chat, "--prompt", "a", "--prompt-tokens", "2"}, {chat, "--max-in-flight", "5"},
		{chat, "--goodput", "itl=5ms"}, {chat, "--through", "planted"}, {chat, "--output-tokens", "-1"},
		{chat, "--grid-context", "1,2"}, {chat, "--fit", "--grid-output", "0"}, {chat, "--fit", "--through", "http://127.0.0.1:1"}, {chat, "--fit", "-n", "5000"},
	} {
		out, err := runMeasure(args...)
		if !errors.Is(err, errUsage) {
			t.Errorf("measure %q = %v", args, err)
		} else if strings.Contains(out+err.Error(), "planted") {
			t.Errorf("measure %q shows a secret: %v", args, err)
		}
	}
}
