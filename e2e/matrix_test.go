// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// The ways in. Each but direct goes through Warmwire.
const (
	direct  = "direct"       // https to the upstream itself: the control
	base    = "base URL"     // http://127.0.0.1:port/openai/v1/…
	forward = "forward"      // absolute form; a configured host, so TLS to it
	open    = "open forward" // absolute form; a host that no upstream has
	tunnel  = "tunnel"       // CONNECT, TLS between client and upstream
	bare    = "bare tunnel"  // CONNECT, plain HTTP inside
)

// A client is one real program.
type client struct {
	name    string
	api     string // whose API it speaks
	kind    string // raw: hashes the body; text: its text; ws: the text of messages
	modes   []string
	command func(*testing.T, trip) *exec.Cmd
}

// A trip is one run of one client.
type trip struct {
	mode, origin, proxy, key, caFile string
}

var everyWay = []string{direct, base, forward, open, tunnel}

var clients = []client{
	{"curl HTTP/1.1", "openai", "raw", append(everyWay, bare), curl("--http1.1")},
	{"curl HTTP/2", "openai", "raw", []string{direct, tunnel}, curl("--http2")},
	{"curl h2c", "openai", "raw", []string{base}, curl("--http2-prior-knowledge")},
	{"npm openai", "openai", "text", everyWay, node("openai")},
	{"npm openai (responses)", "openai", "text", everyWay, node("openai-responses")},
	{"npm @anthropic-ai/sdk", "anthropic", "text", everyWay, node("anthropic")},
	{"npm @google/genai", "gemini", "text", everyWay, node("genai")},
	{"Node fetch, undici", "openai", "raw", everyWay, node("fetch")},
	{"npm ws", "openai", "ws", everyWay, node("ws")},
	{"npm openai (realtime)", "openai", "ws", []string{direct, base, tunnel}, node("openai-realtime")}, // makes wss: of every URL
	{"npm @google/genai (live)", "gemini", "ws", []string{direct, base}, node("genai-live")},           // knows no proxy
	{"Python requests", "openai", "raw", everyWay, python("requests", "requests")},
	{"Python httpx", "openai", "raw", everyWay, python("httpx", "httpx")},
	{"Python httpx HTTP/2", "openai", "raw", []string{direct, tunnel}, python("httpx-h2", "httpx", "h2")},
	{"Python aiohttp", "openai", "raw", everyWay, python("aiohttp", "aiohttp")},
	{"Python aiohttp WebSocket", "openai", "ws", everyWay, python("aiohttp-ws", "aiohttp")},
	{"Python websockets", "openai", "ws", []string{direct, base, tunnel, bare}, python("websockets", "websockets")},
	{"Go net/http", "openai", "raw", everyWay, golang("nethttp")},
	{"Go net/http h2c", "openai", "raw", []string{base}, golang("nethttp-h2c")},
	{"Go gorilla/websocket", "openai", "ws", []string{direct, base, tunnel, bare}, golang("gorilla")},
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, u.caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	warmwire := startWarmwire(t, u, caFile, settings{}).origin
	var table report
	t.Cleanup(func() { table.write(t) })
	for i, c := range clients {
		for j, mode := range c.modes {
			t.Run(strings.ReplaceAll(c.name, "/", "-")+"/"+mode, func(t *testing.T) {
				t.Parallel()
				trip := trip{mode: mode, key: fmt.Sprintf("key-%d-%d", i, j), caFile: caFile}
				trip.origin, trip.proxy = route(mode, c.api, u, warmwire)
				r := row{client: c.name, mode: mode, result: "failed"}
				defer func() {
					if t.Skipped() {
						r.result = "skipped"
					}
					table.add(r)
				}()
				take(t, u, c, trip, &r)
			})
		}
	}
}

// route is what a person would set for a mode.
func route(mode, api string, u *upstream, warmwire string) (origin, proxy string) {
	plain := "http" + strings.TrimPrefix(u.tls[api], "https")
	switch mode {
	case direct:
		return u.tls[api], ""
	case base:
		return warmwire + "/" + api, ""
	case forward:
		return plain, warmwire
	case tunnel:
		return u.tls[api], warmwire
	default: // open, bare
		return u.plain, warmwire
	}
}

// take runs the client once and judges its answer.
func take(t *testing.T, u *upstream, c client, trip trip, r *row) {
	t.Helper()
	cmd := c.command(t, trip)
	run := u.begin(trip.key)
	got := converse(t, cmd, run, trip.mode)
	run.mu.Lock()
	defer run.mu.Unlock()
	r.app, r.upstream = got.Protocol, run.protocol
	if got.TextSHA256 == "" {
		return // converse has said why
	}
	want, err := textOf(c.kind, run.sent)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(want)
	switch {
	case got.TextSHA256 != hex.EncodeToString(sum[:]):
		t.Errorf("received other bytes than the %d that were sent", len(want))
	case run.late:
		t.Error("nothing reached the client before the upstream sent more: the answer was held back")
	case got.Chunks < 2:
		t.Errorf("the answer arrived in %d piece", got.Chunks)
	case run.calls != 1:
		t.Errorf("the upstream was called %d times", run.calls)
	default:
		r.result = "ok"
	}
}

// A result is the line that a client prints at its end.
type result struct {
	TextSHA256 string `json:"text_sha256"`
	Chunks     int    `json:"chunks"`
	Protocol   string `json:"protocol"`
}

// converse runs a client to its end and opens the gate when it reports its
// first piece. curl reports nothing; for it the output is the answer.
func converse(t *testing.T, cmd *exec.Cmd, r *run, mode string) (got result) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if filepath.Base(cmd.Path) == "curl" {
		got, err = readAnswer(out, r)
	} else {
		got, err = readReport(out, r)
	}
	if waitErr := cmd.Wait(); waitErr != nil {
		t.Errorf("client through %s: %v\n%s", mode, waitErr, stderr.String())
		return result{}
	}
	if err != nil {
		t.Errorf("client through %s: %v\n%s", mode, err, stderr.String())
		return result{}
	}
	if filepath.Base(cmd.Path) == "curl" { // what -w prints is complete after Wait
		got.Protocol = "HTTP/" + strings.TrimSpace(stderr.String())
	}
	return got
}

func readReport(out io.Reader, r *run) (got result, err error) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "first" {
			close(r.first)
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			return result{}, fmt.Errorf("line %q: %w", lines.Text(), err)
		}
	}
	return got, lines.Err()
}

func readAnswer(out io.Reader, r *run) (got result, err error) {
	hash, buf := sha256.New(), make([]byte, 64<<10)
	for {
		n, err := out.Read(buf)
		if n > 0 {
			if got.Chunks++; got.Chunks == 1 {
				close(r.first)
			}
			hash.Write(buf[:n])
		}
		if err == io.EOF {
			got.TextSHA256 = hex.EncodeToString(hash.Sum(nil))
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// environment is all that a client gets to know.
func environment(trip trip) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "NODE_EXTRA_CA_CERTS=" + trip.caFile,
		"E2E_MODEL=mock", "E2E_ORIGIN=" + trip.origin, "E2E_KEY=" + trip.key, "E2E_CA=" + trip.caFile, "E2E_PROXY=" + trip.proxy,
	}
	if trip.mode == open {
		trip.mode = forward
	}
	return append(env, "E2E_MODE="+trip.mode)
}

// child is a command that does not outlive the harness's patience.
func child(t *testing.T, trip trip, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = environment(trip)
	return cmd
}

func node(name string) func(*testing.T, trip) *exec.Cmd {
	return func(t *testing.T, trip trip) *exec.Cmd {
		return child(t, trip, testenv.NeedNodeModules(t, "clients/node"), "clients/node/client.mjs", name)
	}
}

func python(name string, modules ...string) func(*testing.T, trip) *exec.Cmd {
	return func(t *testing.T, trip trip) *exec.Cmd {
		return child(t, trip, testenv.NeedPython(t, modules...), "clients/python/client.py", name)
	}
}

func golang(name string) func(*testing.T, trip) *exec.Cmd {
	return func(t *testing.T, trip trip) *exec.Cmd { return child(t, trip, built(t).client, name) }
}

func curl(version string) func(*testing.T, trip) *exec.Cmd {
	return func(t *testing.T, trip trip) *exec.Cmd {
		args := []string{
			"-sSN", "--fail-with-body", version, "--cacert", trip.caFile, "-w", "%{stderr}%{http_version}",
			"-H", "Authorization: Bearer " + trip.key, "-H", "Content-Type: application/json",
			"-d", `{"model":"mock","stream":true,"messages":[{"role":"user","content":"hello"}]}`,
		}
		if trip.proxy != "" {
			args = append(args, "-x", trip.proxy)
		}
		if trip.mode == bare {
			args = append(args, "--proxytunnel")
		}
		return child(t, trip, testenv.Need(t, "curl"), append(args, trip.origin+"/v1/chat/completions")...)
	}
}

// TestLockNamesNoHost keeps the addresses of somebody's mirror out of the lock
// file: npm then takes each package from the registry it is configured for.
func TestLockNamesNoHost(t *testing.T) {
	text, err := os.ReadFile("clients/node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct{ Resolved, Integrity string }
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		t.Fatal(err)
	}
	for name, p := range lock.Packages {
		if p.Resolved != "" && !strings.HasPrefix(p.Resolved, "https://registry.npmjs.org/") {
			t.Errorf("%s comes from %s", name, p.Resolved)
		}
		if name != "" && p.Integrity == "" {
			t.Errorf("%s has no checksum", name)
		}
	}
	if len(lock.Packages) < 2 {
		t.Error("the lock file names no packages")
	}
}

// A row is one line of the table.
type row struct{ client, mode, result, app, upstream string }

// A report collects the rows of parallel runs.
type report struct {
	mu   sync.Mutex
	rows []row // guarded by mu
}

func (r *report) add(line row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, line)
}

// write leaves the table as Markdown, in the order of the list above.
func (r *report) write(t *testing.T) {
	place := map[string]int{}
	for i, c := range clients {
		for j, mode := range c.modes {
			place[c.name+mode] = i*10 + j
		}
	}
	slices.SortFunc(r.rows, func(a, b row) int { return place[a.client+a.mode] - place[b.client+b.mode] })
	text := "| client | way in | result | client saw | upstream saw |\n|---|---|---|---|---|\n"
	for _, line := range r.rows {
		text += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", line.client, line.mode, line.result, line.app, line.upstream)
	}
	if err := os.MkdirAll("out", 0o755); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile("out/matrix.md", []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}
