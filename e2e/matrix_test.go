// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
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
	"testing"
)

// TestMatrix runs each client each way. Who is believed: the client about the bytes that
// it received, the upstream about those that it sent and when, and Warmwire's access log
// about how it came by the request. An intercepted client trusts Warmwire's authority
// and not the upstream's, and one in an untouched tunnel the upstream's alone.
func TestMatrix(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	table := &report{accessLog: filepath.Join(t.TempDir(), "access.log")}
	t.Cleanup(func() { table.conclude(t) }) // when Warmwire has ended
	s := startStage(t, u, table.accessLog)
	t.Cleanup(func() { s.onlyIntercepted(t) })
	for i, c := range clients {
		for j, mode := range c.modes {
			t.Run(strings.ReplaceAll(c.name, "/", "-")+"/"+mode, func(t *testing.T) {
				t.Parallel()
				r := row{client: i, mode: mode, trace: fmt.Sprintf("%016x%016x", i+1, j+1)}
				trip := s.trip(mode, c.api, fmt.Sprintf("key-%d-%d", i, j))
				trip.trace = r.trace
				defer func() {
					r.skipped = t.Skipped()
					table.add(r)
				}()
				cmd := c.command(t, trip)
				if mode == execed {
					s.wrap(cmd)
				}
				take(t, u, c, cmd, trip, &r)
				if *update {
					r.version = c.version(t)
				}
			})
		}
	}
}

// A matrixStage is the upstream and Warmwire, and what clients may be told to trust.
type matrixStage struct {
	sidecar
	u                            *upstream
	upstreamCA, ownCA, ownBundle string // files
}

// startStage runs a Warmwire that intercepts the upstream's other name, and not localhost.
func startStage(t *testing.T, u *upstream, accessLog string) *matrixStage {
	t.Helper()
	s := &matrixStage{u: u, upstreamCA: filepath.Join(t.TempDir(), "ca.pem")}
	if err := os.WriteFile(s.upstreamCA, u.caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	s.sidecar = startWarmwire(t, u, s.upstreamCA, settings{
		listed: true, top: fmt.Sprintf("log: {access: {sample: 1, summary: 0s, format: json, file: %s}}\n", accessLog),
	})
	s.ownCA, s.ownBundle = s.print(t, "ca", "path"), s.print(t, "ca", "bundle")
	return s
}

// trip is what a person would set for a mode.
func (s *matrixStage) trip(mode, api, key string) trip {
	trip := trip{mode: mode, key: key, caFile: s.upstreamCA}
	trip.origin, trip.proxy = route(mode, api, s.u, s.origin)
	if mode == intercepted {
		trip.caFile, trip.bundle = s.ownCA, s.ownBundle
	}
	return trip
}

// wrap has a client run by a Warmwire of its own, and told by it. Its access log is the
// same file.
func (s *matrixStage) wrap(cmd *exec.Cmd) {
	cmd.Args = append([]string{s.program, "exec", "-c", s.file, "--private", "--", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = s.program
	cmd.Env = append(cmd.Env, "STATE_DIRECTORY="+s.state)
	cmd.WaitDelay = patience // a client that outlives its Warmwire holds the pipes
}

// onlyIntercepted looks whether what was to be intercepted was, and nothing else: no
// client refused the certificate, and no other tunnel was looked into.
func (s *matrixStage) onlyIntercepted(t *testing.T) {
	for line := range strings.Lines(lines(s.page(t, "/metrics"), "warmwire_intercepts_total{")) {
		// A browser opens connections that it then does not use.
		if !strings.Contains(line, `result="intercepted"`) && !strings.Contains(line, `result="left"`) {
			t.Errorf("tunnels to listed hosts: %s", line)
		}
	}
}

// route is the origin and the proxy of a mode.
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
	case intercepted:
		return u.listed[api], warmwire
	case execed:
		return u.listed[api], ""
	default: // open, bare
		return u.plain, warmwire
	}
}

// take runs the client once and judges its answer.
func take(t *testing.T, u *upstream, c client, cmd *exec.Cmd, trip trip, r *row) {
	t.Helper()
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
		r.ok = true
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
	isCurl := slices.ContainsFunc(cmd.Args, func(arg string) bool { return filepath.Base(arg) == "curl" })
	if isCurl {
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
	if isCurl { // what -w prints is complete after Wait
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
