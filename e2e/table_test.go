// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "write docs/clients.md from this run")

// clientsPage is made from the run, between its marks.
const clientsPage, tableBegins, tableEnds = "../docs/clients.md", "<!-- begin table -->\n", "<!-- end table -->\n"

// A row is what came of one trip.
type row struct {
	client        int // its place in clients
	mode, trace   string
	ok, skipped   bool
	app, upstream string // the protocols that they saw
	version       string // of the client, if the page is to be written
}

// A report collects the rows of parallel runs.
type report struct {
	accessLog string
	mu        sync.Mutex
	rows      []row // guarded by mu
}

func (r *report) add(line row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, line)
}

// conclude judges the run by Warmwire's access log, leaves all rows in out/matrix.md, and
// compares docs/clients.md with a run that had all clients.
func (r *report) conclude(t *testing.T) {
	requests, err := readAccessLog(r.accessLog)
	if err != nil {
		t.Error(err)
	}
	text := "| client | way in | result | client saw | upstream saw |\n|---|---|---|---|---|\n"
	slices.SortFunc(r.rows, func(a, b row) int { return strings.Compare(a.trace, b.trace) })
	whole := true
	for i := range r.rows {
		line := &r.rows[i]
		result := "failed"
		switch {
		case line.skipped:
			result = "skipped"
		case line.ok:
			if err := line.confirm(requests); err != nil {
				t.Errorf("%s, %s: %v", clients[line.client].name, line.mode, err)
			} else {
				result = "ok"
			}
		}
		whole = whole && result == "ok"
		text += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", clients[line.client].name, line.mode, result, line.app, line.upstream)
	}
	if err := os.MkdirAll("out", 0o755); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join("out", "matrix.md"), []byte(text), 0o644); err != nil {
		t.Error(err)
	}
	ways := 0
	for _, c := range clients {
		ways += len(c.modes)
	}
	if whole && len(r.rows) == ways {
		r.publish(t)
	}
}

// A request is what Warmwire's access log says of one.
type request struct {
	Mode, Upstream, Protocol, Outcome string
	UpstreamProtocol                  string `json:"upstream_protocol"`
	TraceID                           string `json:"trace_id"`
}

// name is what a request is known by: its trace, or of one without how it came in and
// where it went.
func (r request) name() string { return cmp.Or(r.TraceID, r.Mode+" "+r.Upstream) }

// readAccessLog returns its requests by their names.
func readAccessLog(path string) (map[string]request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	requests := map[string]request{}
	for in := bufio.NewScanner(file); in.Scan(); {
		var one request
		if err := json.Unmarshal(in.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("access log: %w in %q", err, in.Text())
		}
		if one.TraceID == "" && one.Mode != "websocket" {
			continue // a tunnel, or what a browser asks for beside
		}
		if _, twice := requests[one.name()]; twice {
			return nil, fmt.Errorf("access log: two requests by the name of %s", one.name())
		}
		requests[one.name()] = one
	}
	return requests, nil
}

// confirm compares a trip with what Warmwire says of it, which of an untouched tunnel is
// nothing, and takes from it what the client spoke.
func (r *row) confirm(requests map[string]request) error {
	c := clients[r.client]
	want := map[string]request{
		base:        {Mode: "base_url", Upstream: c.api},
		forward:     {Mode: "forward", Upstream: c.api},
		open:        {Mode: "forward"},
		intercepted: {Mode: "intercept", Upstream: "listed-" + c.api},
		execed:      {Mode: "intercept", Upstream: "listed-" + c.api},
	}[r.mode]
	if c.kind == "ws" && want.Mode != "" {
		want.Mode = "websocket"
	}
	if !c.mute {
		want.TraceID = r.trace
	}
	got, seen := requests[want.name()]
	if seen != (want.Mode != "") {
		return fmt.Errorf("the access log has it: %v, want %v", seen, !seen)
	}
	if !seen {
		if r.app == "" {
			r.app = r.upstream // the bytes of the one are those of the other
		}
		return nil
	}
	if got.Mode != want.Mode || got.Upstream != want.Upstream || got.Outcome != "ok" {
		return fmt.Errorf("the access log says %+v, want mode %s to %q", got, want.Mode, want.Upstream)
	}
	if got.UpstreamProtocol != r.upstream {
		return fmt.Errorf("the access log says that the upstream spoke %s, and the upstream %s", got.UpstreamProtocol, r.upstream)
	}
	r.app = got.Protocol
	return nil
}

// A way is a column of the table, and the modes that it takes together; what stands in
// it is what the first of them that a client goes has shown.
type way struct {
	title string
	modes []string
}

var columns = []way{
	{"base URL", []string{base}},
	{"absolute form", []string{forward, open}},
	{"CONNECT", []string{tunnel, bare}},
	{"CONNECT, intercepted", []string{intercepted}},
	{"`warmwire exec`", []string{execed}},
}

// table is a line for each client and a column for each way.
func (r *report) table() string {
	text := "| client | version |"
	for _, w := range columns {
		text += " " + w.title + " |"
	}
	text += "\n" + strings.Repeat("|---", len(columns)+2) + "|\n"
	var notes []string
	for i, c := range clients {
		name := c.name
		if c.note != "" {
			at := slices.Index(notes, c.note)
			if at < 0 {
				notes, at = append(notes, c.note), len(notes)
			}
			name += fmt.Sprintf(" (%d)", at+1)
		}
		text += fmt.Sprintf("| %s | %s |", name, r.version(i))
		for _, w := range columns {
			text += " " + r.cell(i, w) + " |"
		}
		text += "\n"
	}
	text += "\n"
	for i, note := range notes {
		text += fmt.Sprintf("%d. %s\n", i+1, note)
	}
	return text
}

// version is the client's.
func (r *report) version(client int) string {
	at := slices.IndexFunc(r.rows, func(l row) bool { return l.client == client })
	return r.rows[at].version
}

// cell says what a client has shown.
func (r *report) cell(client int, w way) string {
	for _, mode := range w.modes {
		at := slices.IndexFunc(r.rows, func(l row) bool { return l.client == client && l.mode == mode })
		if at < 0 {
			continue
		}
		app, upstream := shortProtocol(r.rows[at].app), shortProtocol(r.rows[at].upstream)
		switch {
		case clients[client].kind == "ws" && app == "2":
			return "WebSocket over HTTP/2"
		case clients[client].kind == "ws":
			return "WebSocket"
		}
		if w.modes[0] == tunnel {
			return "stream, " + app
		}
		return "stream, " + app + " → " + upstream
	}
	return "–"
}

// shortProtocol is the number alone: HTTP/2.0 and HTTP/2 are 2.
func shortProtocol(name string) string {
	return strings.TrimSuffix(strings.TrimPrefix(name, "HTTP/"), ".0")
}

// publish compares the page with the table of this run but for the versions, which are
// those of the machine; or writes it.
func (r *report) publish(t *testing.T) {
	page, err := os.ReadFile(clientsPage)
	if err != nil {
		t.Error(err)
		return
	}
	before, rest, found := strings.Cut(string(page), tableBegins)
	old, after, closed := strings.Cut(rest, tableEnds)
	if !found || !closed {
		t.Errorf("%s has no marks", clientsPage)
		return
	}
	table := r.table()
	if *update {
		if err := os.WriteFile(clientsPage, []byte(before+tableBegins+table+tableEnds+after), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	if got, want := withoutVersions(table), withoutVersions(old); got != want {
		t.Errorf("%s is not what ran, without versions:\n%s\nRun: make clients", clientsPage, got)
	}
}

// withoutVersions leaves the second column out.
func withoutVersions(table string) (text string) {
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			line = strings.Join(slices.Delete(cells, 2, 3), "|")
		}
		text += line
	}
	return text
}
