// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/sidecar"
	"github.com/warmwire/warmwire/internal/testenv"
)

// patience bounds every wait; nothing passes by waiting it out.
const patience = 10 * time.Second

// A rig is a whole Warmwire in this process, on free ports.
type rig struct {
	t      testing.TB
	s      *sidecar.Sidecar
	addr   string
	admin  string
	log    *syncBuffer
	file   string // of the configuration
	full   bool   // its disk
	state  string // folder
	cancel context.CancelFunc
	done   chan error
	once   sync.Once
}

// syncBuffer is a log that the test reads while it is written.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs a Warmwire whose upstream "up" is the plain server at upstream; more
// is YAML added at the top level.
func start(t testing.TB, upstream, more string) *rig {
	t.Helper()
	return startIn(t, t.TempDir(), upstream, more)
}

// startIn is as start, with the state of an earlier run.
func startIn(t testing.TB, state, upstream, more string) *rig {
	t.Helper()
	r := &rig{t: t, log: new(syncBuffer), file: t.TempDir() + "/warmwire.yaml", state: state, done: make(chan error, 1)}
	r.write(upstream, more)
	load := func(over config.Over) (*config.Config, []string, error) {
		return config.LoadOver(r.file, os.LookupEnv, over)
	}
	cfg, _, err := load(config.Over{})
	if err != nil {
		t.Fatal(err)
	}
	r.s, err = sidecar.New(cfg, sidecar.Options{Version: "test", LogTo: r.log, Load: load, EditFile: r.edit, File: r.file, Upgrade: func(context.Context) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	r.addr, r.admin = r.s.Addr(), r.s.AdminAddr()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- r.s.Run(ctx) }()
	t.Cleanup(r.stop)
	return r
}

// edit changes it.
func (r *rig) edit(change func([]byte, config.Env) ([]byte, error)) error {
	text, err := os.ReadFile(r.file)
	if err != nil {
		return err
	}
	if text, err = change(text, os.LookupEnv); err != nil || text == nil {
		return err
	}
	if r.full {
		return syscall.ENOSPC
	}
	return os.WriteFile(r.file, text, 0o600)
}

// write makes the configuration file.
func (r *rig) write(upstream, more string) {
	r.t.Helper()
	text := fmt.Sprintf("state_dir: %s\n", r.state)
	if !strings.Contains(more, "admin:") {
		text += "admin: {address: 127.0.0.1:0}\n"
	}
	if !strings.Contains(more, "listen:") {
		text += "listen: {address: 127.0.0.1:0}\n"
	}
	if !strings.Contains(more, "upstreams:") {
		text += "upstreams:\n  up: {url: 'http://" + upstream + "'}\n"
	}
	if !strings.Contains(more, "defaults:") { // scripted upstreams count connections
		text += "defaults: {pool: {warm: 0}}\n"
	}
	if !strings.Contains(more, "drain:") {
		text += "drain: {timeout: 50ms}\n"
	}
	if !strings.Contains(more, "log:") {
		text += "log: {access: {sample: 1}}\n"
	}
	if err := os.WriteFile(r.file, []byte(text+strings.ReplaceAll(more, "UPSTREAM", upstream)), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// stop ends the Warmwire and waits for it.
func (r *rig) stop() {
	r.once.Do(func() {
		r.cancel()
		select {
		case err := <-r.done:
			if err != nil {
				r.t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			r.t.Error("Run does not return")
		}
	})
}

// metric waits until the metrics have a line.
func (r *rig) metric(line string) {
	r.t.Helper()
	r.awaitMetric(line, func(have string) bool { return have == line })
}

// metricAtLeast waits until a series that goes on growing has reached n.
func (r *rig) metricAtLeast(series string, n float64) {
	r.t.Helper()
	r.awaitMetric(fmt.Sprint(series, " of ", n, " or more"), func(line string) bool {
		value, ok := strings.CutPrefix(line, series+" ")
		f, err := strconv.ParseFloat(value, 64)
		return ok && err == nil && f >= n
	})
}

// awaitMetric waits until one of the metrics' lines is right.
func (r *rig) awaitMetric(want string, right func(line string) bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	family := want[:strings.IndexAny(want, "{ ")]
	for deadline := time.Now().Add(patience); ; <-tick.C {
		var have []string
		for line := range strings.SplitSeq(r.get("/metrics"), "\n") {
			if right(line) {
				return
			}
			if strings.HasPrefix(line, family) {
				have = append(have, line)
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("metrics have no line %q but %q", want, have)
		}
	}
}

// post makes an admin call that changes state.
func (r *rig) post(path string) (status int, body string) {
	r.t.Helper()
	token, err := os.ReadFile(r.state + "/admin.token")
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+r.admin+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return r.do(req)
}

// call makes a call as an app does.
func (r *rig) call(path string) (status int, body string) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+r.addr+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.do(req)
}

// do makes a request and reads the whole answer.
func (r *rig) do(req *http.Request) (status int, body string) {
	r.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// get reads a page of the admin listener.
func (r *rig) get(path string) string {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+r.admin+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	_, body := r.do(req)
	return body
}

// dial opens a raw connection to the rig.
func (r *rig) dial() *testenv.Raw {
	r.t.Helper()
	return testenv.DialRaw(r.t, r.addr)
}

// dialNarrow opens one whose kernel takes little that is not read.
func (r *rig) dialNarrow() *testenv.Raw {
	r.t.Helper()
	return testenv.DialRawNarrow(r.t, r.addr)
}

// answering serves every request with the same bytes and hands each head out.
func answering(t testing.TB, answer string) (addr string, heads chan string) {
	heads = make(chan string, 100)
	return testenv.ServeRaw(t, func(c *testenv.Raw) {
		for head := c.Head(); head != ""; head = c.Head() {
			heads <- head
			c.SendExact(answer)
			if strings.Contains(answer, "Connection: close") {
				return
			}
		}
	}), heads
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// h2c is a client that speaks HTTP/2 without TLS, by prior knowledge.
func h2c(t testing.TB) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}
