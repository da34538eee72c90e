// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestMain lets this binary be the processes that the bench starts of itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "-role=") {
		main()
		return
	}
	// Under the race detector each of them would take a second to exit.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestShortRun shows that the harness works from end to end, with a proxy of
// each kind and without any program but the bench; its figures are noise.
func TestShortRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	markdown, absolute := filepath.Join(dir, "table.md"), filepath.Join(dir, "all.json")
	s := settings{only: "stock,stock-forward", out: markdown, json: absolute}
	s.size(true)
	if err := run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(markdown)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n| direct ", "\n| stock ", "\n| direct-plain ", "\n| stock-forward "} {
		if !strings.Contains(string(table), want) {
			t.Errorf("no row %q in\n%s", want, table)
		}
	}
	text, err := os.ReadFile(absolute)
	if err != nil {
		t.Fatal(err)
	}
	var peers []struct {
		Peer   string
		Rounds []round
		Memory []memory
	}
	if err := json.Unmarshal(text, &peers); err != nil {
		t.Fatal(err)
	}
	if len(peers) != 4 {
		t.Fatalf("%d peers in the JSON, want 4", len(peers))
	}
	for _, p := range peers {
		for _, one := range p.Rounds {
			if f := one.Peer; f.FirstP50 <= 0 || f.RelayP50 <= 0 || f.PerSecond <= 0 || one.Direct.RelayP50 <= 0 {
				t.Errorf("%s: %+v, want every figure above 0", p.Peer, one)
			}
		}
		for _, m := range p.Memory {
			if m.Ahead <= 0 || m.Ahead >= answerBytes {
				t.Errorf("%s: read %v bytes ahead, want some, and less than the whole answer", p.Peer, m.Ahead)
			}
		}
	}
}

// TestEveryPeerRelays: each configuration is one that the program takes, and
// calls and streams come through it whole.
func TestEveryPeerRelays(t *testing.T) {
	t.Parallel()
	warmwire, err := testenv.Build("..", "cmd/warmwire")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(warmwire))
	s := settings{warmwire: warmwire, streams: 2, rate: 50, tokens: 100 * time.Millisecond}
	ctx := t.Context()
	r, cleanup, err := newRack(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	defer cleanup()
	ca, err := os.ReadFile(r.ca)
	if err != nil {
		t.Fatal(err)
	}
	for _, sp := range specs() {
		t.Run(sp.name, func(t *testing.T) {
			p, err := r.start(ctx, sp)
			if errors.Is(err, errMissing) {
				t.Skipf("%v: apt-get install %s", err, sp.debian)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer p.stop()
			if p.cmd != nil && !strings.ContainsAny(p.version, "0123456789") && p.version != "devel" {
				t.Errorf("version %q, want a number", p.version)
			}
			c := p.client(ca)
			defer c.close()
			if err := c.calls(ctx, 5, histogram()); err != nil {
				t.Error(err)
			}
			if n, _, err := c.tokens(ctx, s, histogram()); n == 0 || err != nil {
				t.Errorf("%d tokens, %v; want some", n, err)
			}
		})
	}
}

func TestOverIsTheMedianWithItsSpread(t *testing.T) {
	for name, c := range map[string]struct {
		values []float64
		want   spread
		ok     bool
	}{
		"odd":              {[]float64{3, 1, 2}, spread{2, 1, 3}, true},
		"even":             {[]float64{4, 1, 2, 3}, spread{2.5, 1, 4}, true},
		"ratio to nothing": {[]float64{math.NaN(), 2, math.Inf(1)}, spread{2, 2, 2}, true},
		"none":             {nil, spread{}, false},
	} {
		if got, ok := over(c.values); got != c.want || ok != c.ok {
			t.Errorf("%s: got %v %v, want %v %v", name, got, ok, c.want, c.ok)
		}
	}
}

// TestReportComparesLikeWithLike: times to the direct run of the same round,
// costs to the stock proxy of the same kind and round, and who is missing is
// named.
func TestReportComparesLikeWithLike(t *testing.T) {
	at := func(name string, k kind, started bool, own, direct float64) *result {
		sp := spec{name: name, kind: k, how: "as it comes"}
		if started {
			sp.start = startNginx
		}
		return &result{spec: sp, version: "1.2.3",
			rounds: []round{{Peer: figures{FirstP50: own, TokenCPU: own}, Direct: figures{FirstP50: direct, TokenCPU: direct}}},
			memory: []memory{{Idle: own, Slow: answerBytes / 4, Ahead: answerBytes / 2}}}
	}
	b := &bench{
		results: []*result{
			at("direct", reverse, false, 1, 1), at("stock", reverse, true, 8, 4), at("nginx", reverse, true, 6, 2),
			at("direct-plain", forward, false, 1, 1), at("stock-forward", forward, true, 5, 1), at("squid", forward, true, 20, 2),
		},
		missing: []spec{{name: "tinyproxy", debian: "tinyproxy"}},
	}
	var out strings.Builder
	if err := b.markdown(&out, time.Unix(0, 0), time.Minute); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"| nginx | 3.00 (3.00–3.00) |", // 6 over 2
		"| nginx | 0.75 (0.75–0.75) | – | 0.75 (0.75–0.75) | 25.00 (25.00–25.00) | 50.00 (50.00–50.00) |", // 6 over stock's 8
		"| squid | 10.00 (10.00–10.00) |",
		"| squid | 4.00 (4.00–4.00) |", // 20 over stock-forward's 5
		"- **squid** 1.2.3: as it comes.",
		"- **tinyproxy** was left out, because it is not installed (`apt-get install tinyproxy`).",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestAnUnquietMachineIsSaid(t *testing.T) {
	control := func(first float64) *bench {
		one := round{Peer: figures{FirstP50: first, RelayP50: 1, PerSecond: 1}, Direct: figures{FirstP50: 1, RelayP50: 1, PerSecond: 1}}
		return &bench{results: []*result{{spec: spec{name: "direct"}}, {spec: spec{name: "control"}, rounds: []round{one, one, one}}}}
	}
	for name, c := range map[string]struct {
		b    *bench
		want string
	}{
		"quiet":      {control(1.05), "was quiet"},
		"busy":       {control(1.2), "TTFT p50 of control is 1.20"},
		"no control": {&bench{results: []*result{{spec: spec{name: "direct"}}}}, "No control"},
	} {
		if got := c.b.quiet(); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want it to say %q", name, got, c.want)
		}
	}
}

func TestVersionIsTheNumberThatAProgramPrints(t *testing.T) {
	for printed, want := range map[string]string{
		"nginx version: nginx/1.22.1\n":                                      "1.22.1",
		"HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/": "2.6.12-1+deb12u4",
		"Squid Cache: Version 5.7\nService Name: squid\nDebian linux\n":      "5.7",
		"tinyproxy 1.11.1": "1.11.1",
		"v2.6.2 h1:wKoFIxpmOJLGl3QXoo6PNbYvGW4xLEgo32GPBEjWL8o=": "2.6.2",
		"warmwire devel (go1.27.3, linux/amd64)":                 "devel",
		"warmwire v0.2.0-3-gabcdef (go1.27.3, linux/amd64)":      "0.2.0-3-gabcdef",
		"no number at all": "of unknown version",
	} {
		if got := versionIn(printed); got != want {
			t.Errorf("%q: got %q, want %q", printed, got, want)
		}
	}
}

func TestOnlyKnownPeersAreChosenWithTheirReference(t *testing.T) {
	got, err := chosen("squid")
	if err != nil || len(got) != 2 || got[0].name != "direct-plain" || got[1].name != "squid" {
		t.Errorf("got %v %v, want direct-plain and squid", got, err)
	}
	if _, err := chosen("squid,sqiud"); err == nil {
		t.Error("a misspelt peer is accepted")
	}
}

func TestCPUAndMemoryOfThisProcess(t *testing.T) {
	if cpu, err := cpuTime(os.Getpid()); err != nil || cpu < 0 || cpu > time.Hour {
		t.Errorf("CPU: %v %v", cpu, err)
	}
	if bytes, err := rss(os.Getpid()); err != nil || bytes < 1<<20 || bytes > 4<<30 {
		t.Errorf("RSS: %d %v", bytes, err)
	}
	if _, err := rss(-1); err == nil {
		t.Error("memory of a process that cannot be")
	}
}
