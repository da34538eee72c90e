// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A kind is how a peer is reached and what it is compared with.
type kind int

const (
	reverse kind = iota // base URL of the peer; TLS to the upstream
	forward             // absolute URL of the upstream; plain HTTP
)

// reference names the peer that ratios of time are taken to, and the one that
// ratios of cost are taken to.
func (k kind) reference() (direct, stock string) {
	if k == forward {
		return "direct-plain", "stock-forward"
	}
	return "direct", "stock"
}

// A spec is a peer that can be started.
type spec struct {
	name   string
	kind   kind
	debian string  // package that holds it; "" = comes with the bench
	how    string  // configuration, for the report
	start  starter // nil: no proxy
}

// A starter starts p so that it listens on address, or says where it does.
type starter = func(r *rack, ctx context.Context, p *peer, address string) error

// A peer is one proxy under test, or none.
type peer struct {
	spec
	base    string   // where calls go
	via     *url.URL // forward proxy; nil = base is the peer
	cmd     *exec.Cmd
	version string
	once    bool // serves one request a connection and does not say so: clients must not try another
}

func (p *peer) client(ca []byte) *client {
	c := newClient(p.base, p.via, ca)
	c.http.Transport.(*http.Transport).DisableKeepAlives = p.once
	return c
}

func (p *peer) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	_ = p.cmd.Wait()
}

func (p *peer) cpu() (time.Duration, error) {
	if p.cmd == nil {
		return 0, nil
	}
	return cpuTime(p.cmd.Process.Pid)
}

func (p *peer) rss() (int64, error) {
	if p.cmd == nil {
		return 0, nil
	}
	return rss(p.cmd.Process.Pid)
}

// A rack knows where peers keep their files and which upstream they serve.
type rack struct {
	dir      string // temporary
	ca       string // file
	upstream string // host:port, TLS
	plain    string // host:port, the same without TLS
	self     string // this binary
	warmwire string // its binary
	server   *peer  // the upstream
	group    string // file that a process is written to before it becomes a peer; "" = none
}

func newRack(ctx context.Context, s settings) (*rack, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	binary, err := filepath.Abs(s.warmwire)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "warmwire-bench-")
	if err != nil {
		return nil, nil, err
	}
	r := &rack{dir: dir, ca: filepath.Join(dir, "ca.pem"), self: self, warmwire: binary}
	cmd, line, err := r.spawn(ctx, "-role=upstream", "-ca="+r.ca)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	up := &peer{cmd: cmd}
	r.server = up
	cleanup := func() { up.stop(); _ = os.RemoveAll(dir) }
	secure, plain, ok := strings.Cut(line, " ")
	if !ok {
		cleanup()
		return nil, nil, fmt.Errorf("the upstream's addresses are %q, want two", line)
	}
	r.upstream, r.plain = strings.Replace(secure, "127.0.0.1", "localhost", 1), plain
	return r, cleanup, nil
}

// spawn starts a role of this binary and returns the line that it prints.
func (r *rack) spawn(ctx context.Context, args ...string) (*exec.Cmd, string, error) {
	cmd := r.command(ctx, r.self, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, "", errors.Join(fmt.Errorf("%v: no address: %w", args, err), cmd.Wait())
	}
	return cmd, strings.TrimSpace(line), nil
}

// command is a command that runs in the rack's group from its first instruction on.
func (r *rack) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if r.group == "" {
		return exec.CommandContext(ctx, name, args...)
	}
	return exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, r.group, name}, args...)...)
}

// run starts a command that listens on address and waits until it answers.
func (r *rack) run(ctx context.Context, p *peer, address, name string, args ...string) error {
	cmd := r.command(ctx, name, args...)
	logFile, err := os.Create(filepath.Join(r.dir, p.name+".log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd.Stdout, cmd.Stderr, cmd.Dir = logFile, logFile, r.dir
	if err := cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			p.cmd = cmd
			return c.Close()
		}
	}
	text, _ := os.ReadFile(logFile.Name())
	_ = cmd.Process.Kill()
	return errors.Join(fmt.Errorf("%s does not listen on %s: %s", name, address, text), cmd.Wait())
}

// config writes a peer's configuration file and returns its path.
func (r *rack) config(p *peer, text string) (string, error) {
	file := filepath.Join(r.dir, p.name+".conf")
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// freeAddr picks a free port; what binds it next could lose it, which run
// would tell.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// errMissing says that a peer is not installed.
var errMissing = errors.New("not installed")

func find(name string) (string, error) {
	for _, candidate := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, errMissing)
}

// start starts a peer; errMissing if its program is not installed.
func (r *rack) start(ctx context.Context, sp spec) (*peer, error) {
	address, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p := &peer{spec: sp, base: "http://" + address}
	switch {
	case sp.start == nil && sp.kind == reverse:
		p.base = "https://" + r.upstream
	case sp.kind == forward:
		p.base = "http://" + r.plain
	}
	if sp.start == nil {
		return p, nil
	}
	if sp.kind == forward {
		p.via = &url.URL{Scheme: "http", Host: address}
	}
	if err := sp.start(r, ctx, p, address); err != nil {
		return nil, err
	}
	return p, nil
}

// versionOf asks a program for its version and keeps the number.
func versionOf(ctx context.Context, binary string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	if err != nil {
		return "of unknown version"
	}
	return versionIn(string(out))
}

// versionIn finds the version in what a program prints about itself.
func versionIn(text string) string {
	if own, ok := strings.CutPrefix(text, "warmwire "); ok { // a tag, a commit, or devel
		own, _, _ = strings.Cut(own, " ")
		return strings.TrimPrefix(own, "v")
	}
	number := regexp.MustCompile(`\d+\.\d+(\.\d+)?[0-9A-Za-z.+~-]*`)
	if v := number.FindString(text); v != "" {
		return v
	}
	return "of unknown version"
}

// chosen are the specs that -only names, and what they are compared with.
func chosen(only string) ([]spec, error) {
	all := specs()
	if only == "" {
		return all, nil
	}
	names := strings.Split(only, ",")
	for _, name := range names {
		if !slices.ContainsFunc(all, func(sp spec) bool { return sp.name == name }) {
			return nil, fmt.Errorf("unknown peer %q", name)
		}
	}
	var out []spec
	for _, sp := range all {
		direct, _ := sp.kind.reference()
		needed := sp.name == direct && slices.ContainsFunc(all, func(o spec) bool {
			return o.kind == sp.kind && slices.Contains(names, o.name)
		})
		if needed || slices.Contains(names, sp.name) {
			out = append(out, sp)
		}
	}
	return out, nil
}
