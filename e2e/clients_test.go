// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// The ways in. Each but direct goes through Warmwire.
const (
	direct      = "direct"       // https to the upstream itself: the control
	base        = "base URL"     // http://127.0.0.1:port/openai/v1/…
	forward     = "forward"      // absolute form; a configured host, so TLS to it
	open        = "open forward" // absolute form; a host that no upstream has
	tunnel      = "tunnel"       // CONNECT, TLS between client and upstream
	bare        = "bare tunnel"  // CONNECT, plain HTTP inside
	intercepted = "intercepted"  // CONNECT to a listed host, all told to the client by the environment
	execed      = "exec"         // the same, with what warmwire exec puts into the environment
)

// A client is one real program.
type client struct {
	name    string
	version func(*testing.T) string
	api     string // whose API it speaks
	kind    string // raw: hashes the body; text: its text; ws: the text of messages
	modes   []string
	command func(*testing.T, trip) *exec.Cmd
	note    string // why it does not go every way
	mute    bool   // it sends no fields of the caller's, and so no traceparent; one for each API
}

// A trip is one run of one client.
type trip struct {
	mode, origin, proxy, key string
	trace                    string // of its traceparent
	caFile, bundle           string // what is to be trusted, alone and with the system's roots
}

var everyWay = []string{direct, base, forward, open, tunnel, intercepted}

// For clients that find the proxy without a word of the app's.
var everyWayAndExec = append(slices.Clip(everyWay), execed)

// The reasons that several have.
const (
	plainHasNoHTTP2 = "Speaks HTTP/2 only where TLS has agreed on it."
	pagesNeedLeave  = "To a base URL pages of `listen.allow_origins` have access, see [configuration.md](configuration.md)."
	noAbsoluteForm  = "Opens a tunnel for `ws:` too."
)

var clients = []client{
	{name: "curl `--http1.1`", version: curlVersion, api: "openai", kind: "raw", modes: append(slices.Clip(everyWayAndExec), bare), command: curl("--http1.1")},
	{name: "curl `--http2`", version: curlVersion, api: "openai", kind: "raw", modes: []string{direct, tunnel, intercepted, execed}, command: curl("--http2"),
		note: plainHasNoHTTP2},
	{name: "curl `--http2-prior-knowledge`", version: curlVersion, api: "openai", kind: "raw", modes: []string{base},
		command: curl("--http2-prior-knowledge"), note: "Is for HTTP/2 without TLS."},
	{name: "npm openai", version: npm("openai"), api: "openai", kind: "text", modes: everyWayAndExec, command: node("openai")},
	{name: "npm openai, Responses", version: npm("openai"), api: "openai", kind: "text", modes: everyWayAndExec, command: node("openai-responses")},
	{name: "npm openai, Realtime", version: npm("openai"), api: "openai", kind: "ws", modes: []string{direct, base, tunnel, intercepted},
		command: node("openai-realtime"), note: "Makes `wss:` of every URL; for an `http:` base URL the caller's options have to open a plain connection."},
	{name: "npm @anthropic-ai/sdk", version: npm("@anthropic-ai/sdk"), api: "anthropic", kind: "text", modes: everyWayAndExec, command: node("anthropic")},
	{name: "npm @google/genai", version: npm("@google/genai"), api: "gemini", kind: "text", modes: everyWayAndExec, command: node("genai")},
	{name: "npm @google/genai, Live", version: npm("@google/genai"), api: "gemini", kind: "ws", modes: []string{direct, base},
		command: node("genai-live"), note: "Knows no proxy.", mute: true},
	{name: "Node fetch", version: npm("undici"), api: "openai", kind: "raw", modes: everyWayAndExec, command: node("fetch")},
	{name: "npm ws with proxy agents", version: npm("ws"), api: "openai", kind: "ws", modes: everyWay, command: node("ws")},
	{name: "Deno fetch", version: npm("deno"), api: "openai", kind: "raw", modes: everyWayAndExec, command: deno("fetch")},
	{name: "Deno, npm openai", version: npm("deno"), api: "openai", kind: "text", modes: everyWayAndExec, command: deno("openai")},
	{name: "Bun fetch", version: npm("bun"), api: "openai", kind: "raw", modes: everyWayAndExec, command: bun("fetch")},
	{name: "Bun, npm openai", version: npm("bun"), api: "openai", kind: "text", modes: everyWayAndExec, command: bun("openai")},
	{name: "Chromium, headless, fetch", version: chromiumVersion, api: "openai", kind: "raw", modes: []string{direct, tunnel, intercepted},
		command: chromium("fetch"), note: pagesNeedLeave},
	{name: "Chromium, headless, WebSocket", version: chromiumVersion, api: "openai", kind: "ws", modes: []string{direct, tunnel, intercepted},
		command: chromium("ws"), note: pagesNeedLeave, mute: true},
	{name: "Python requests", version: module("requests"), api: "openai", kind: "raw", modes: everyWayAndExec, command: python("requests", "requests")},
	{name: "Python httpx", version: module("httpx"), api: "openai", kind: "raw", modes: everyWayAndExec, command: python("httpx", "httpx")},
	{name: "Python httpx, `http2=True`", version: module("httpx"), api: "openai", kind: "raw", modes: []string{direct, tunnel, intercepted, execed},
		command: python("httpx-h2", "httpx", "h2"), note: plainHasNoHTTP2},
	{name: "Python aiohttp", version: module("aiohttp"), api: "openai", kind: "raw", modes: everyWayAndExec, command: python("aiohttp", "aiohttp")},
	{name: "Python aiohttp, WebSocket", version: module("aiohttp"), api: "openai", kind: "ws", modes: everyWayAndExec, command: python("aiohttp-ws", "aiohttp")},
	{name: "Python websockets", version: module("websockets"), api: "openai", kind: "ws", modes: []string{direct, base, tunnel, bare, intercepted},
		command: python("websockets", "websockets"), note: "Is given the connection in the tunnel: this version opens none itself."},
	{name: "Go net/http", version: goVersion, api: "openai", kind: "raw", modes: everyWayAndExec, command: golang("nethttp")},
	{name: "Go net/http, h2c", version: goVersion, api: "openai", kind: "raw", modes: []string{base}, command: golang("nethttp-h2c"),
		note: "Is for HTTP/2 without TLS."},
	{name: "Go gorilla/websocket", version: gorillaVersion, api: "openai", kind: "ws", modes: []string{direct, base, tunnel, bare, intercepted, execed},
		command: golang("gorilla"), note: noAbsoluteForm},
}

// environment is all that a client gets to know. An intercepted one is told of the
// proxy and of what to trust as a person would tell it: by the variables that it reads.
func environment(trip trip) []string {
	if trip.mode == open {
		trip.mode = forward // the client does the same
	}
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "E2E_MODE=" + trip.mode,
		"E2E_MODEL=mock", "E2E_ORIGIN=" + trip.origin, "E2E_KEY=" + trip.key, "E2E_TRACEPARENT=00-" + trip.trace + "-00f067aa0ba902b7-01",
	}
	if trip.mode == execed {
		return env
	}
	env = append(env, "NODE_EXTRA_CA_CERTS="+trip.caFile, "DENO_CERT="+trip.caFile)
	if trip.mode == intercepted {
		return append(env, "HTTPS_PROXY="+trip.proxy, "https_proxy="+trip.proxy, "wss_proxy="+trip.proxy, // that one for aiohttp
			"SSL_CERT_FILE="+trip.bundle, "REQUESTS_CA_BUNDLE="+trip.bundle, "CURL_CA_BUNDLE="+trip.bundle)
	}
	return append(env, "E2E_CA="+trip.caFile, "E2E_PROXY="+trip.proxy)
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

// deno and bun are npm packages, of which one for each kind of machine has the program.
// Both read proxy variables in every mode.
func deno(name string) func(*testing.T, trip) *exec.Cmd {
	return func(t *testing.T, trip trip) *exec.Cmd {
		cmd := child(t, trip, runtimeOf(t, "@deno/*/deno"), "run", "--allow-all", "--no-prompt", "--no-remote", "--node-modules-dir=manual", "clients/node/client.mjs", name)
		cmd.Env = append(cmd.Env, "DENO_DIR="+t.TempDir(), "DENO_NO_UPDATE_CHECK=1", "HTTP_PROXY="+trip.proxy, "HTTPS_PROXY="+trip.proxy)
		return cmd
	}
}

func bun(name string) func(*testing.T, trip) *exec.Cmd {
	return func(t *testing.T, trip trip) *exec.Cmd {
		cmd := child(t, trip, runtimeOf(t, "@oven/bun-*/bin/bun"), "--no-install", "clients/node/client.mjs", name)
		cmd.Env = append(cmd.Env, "DO_NOT_TRACK=1", "HTTP_PROXY="+trip.proxy, "HTTPS_PROXY="+trip.proxy)
		return cmd
	}
}

func runtimeOf(t *testing.T, pattern string) string {
	t.Helper()
	testenv.NeedNodeModules(t, "clients/node")
	found, err := filepath.Glob("clients/node/node_modules/" + pattern)
	if err != nil || len(found) == 0 {
		testenv.SkipOrFail(t, "npm has no %s for this kind of machine", pattern)
	}
	return found[0]
}

// chromium is a page in a browser whose user trusts what the trip names. `warmwire ca
// install` puts it into the same database.
func chromium(name string) func(*testing.T, trip) *exec.Cmd {
	return func(t *testing.T, trip trip) *exec.Cmd {
		driver, browser, certutil := testenv.NeedNodeModules(t, "clients/node"), testenv.Need(t, "chromium-headless-shell"), testenv.Need(t, "certutil")
		home := t.TempDir()
		database := filepath.Join(home, ".pki", "nssdb")
		if err := os.MkdirAll(database, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-N", "--empty-password"}, {"-A", "-n", "trusted", "-t", "C,,", "-i", trip.caFile}} {
			if out, err := exec.CommandContext(t.Context(), certutil, append(args, "-d", "sql:"+database)...).CombinedOutput(); err != nil {
				t.Fatalf("certutil %v: %v\n%s", args, err, out)
			}
		}
		cmd := child(t, trip, driver, "clients/node/chromium.mjs", name)
		cmd.Env = append(cmd.Env, "HOME="+home, "E2E_CHROMIUM="+browser)
		return cmd
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
			"-sSN", "--fail-with-body", version, "-w", "%{stderr}%{http_version}",
			"-H", "Authorization: Bearer " + trip.key, "-H", "Content-Type: application/json", "-H", "Traceparent: 00-" + trip.trace + "-00f067aa0ba902b7-01",
			"-d", `{"model":"mock","stream":true,"messages":[{"role":"user","content":"hello"}]}`,
		}
		if trip.mode != intercepted && trip.mode != execed {
			args = append(args, "--cacert", trip.caFile)
			if trip.proxy != "" {
				args = append(args, "-x", trip.proxy)
			}
		}
		if trip.mode == bare {
			args = append(args, "--proxytunnel")
		}
		return child(t, trip, testenv.Need(t, "curl"), append(args, trip.origin+"/v1/chat/completions")...)
	}
}
