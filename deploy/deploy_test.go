// SPDX-License-Identifier: Apache-2.0

// Package deploy checks the files that Warmwire is shipped with, each by a tool
// of its platform. The Kubernetes manifests have a module of their own for it,
// in kubernetes/check.
package deploy

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/warmwire/warmwire/internal/testenv"
)

// maxExposure is the ceiling for `systemd-analyze security`, on its scale of 0
// (locked) to 100. What is left is what the program needs: the network, netlink
// and the host's user ids.
const maxExposure = "20"

// binary builds the program as it is shipped, once for all tests here.
var binary = sync.OnceValues(func() (string, error) {
	if err := os.Setenv("CGO_ENABLED", "0"); err != nil {
		return "", err
	}
	return testenv.Build("..", "cmd/warmwire", "-trimpath")
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func program(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// verifyUnits returns what systemd finds wrong with the service and its socket.
// /bin/true stands in for the program, which is not installed here.
func verifyUnits(t *testing.T, analyze, service, socket string) string {
	t.Helper()
	dir := t.TempDir()
	servicePath, socketPath := filepath.Join(dir, "warmwire.service"), filepath.Join(dir, "warmwire.socket")
	service = strings.ReplaceAll(service, "/usr/local/bin/warmwire", "/bin/true")
	for path, text := range map[string]string{servicePath: service, socketPath: socket} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var found strings.Builder
	for _, args := range [][]string{
		{"verify", "--man=no", "--generators=no", servicePath, socketPath},
		{"security", "--offline=true", "--no-pager", "--threshold=" + maxExposure, servicePath},
	} {
		out, err := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			found.Write(out)
		}
	}
	return found.String()
}

func TestUnitsAreValidAndHardened(t *testing.T) {
	analyze := testenv.Need(t, "systemd-analyze")
	service, socket := read(t, "systemd/warmwire.service"), read(t, "systemd/warmwire.socket")
	if found := verifyUnits(t, analyze, service, socket); found != "" {
		t.Error(found)
	}
	faults := map[string]struct{ old, new, want string }{
		"misspelt key":   {"NoNewPrivileges=", "NoNewPrivilege=", "NoNewPrivilege"},
		"wrong value":    {"ProtectSystem=strict", "ProtectSystem=strictly", "protect system"},
		"no program":     {"ExecStart=/usr/local/bin/warmwire run", "ExecStart=/usr/local/bin/none-such run", "none-such"},
		"not hardened":   {"SystemCallFilter=", "#", "exposure level"},
		"no such type":   {"Type=notify\n", "Type=telling\n", "telling"},
		"wrong watchdog": {"WatchdogSec=30s", "WatchdogSec=often", "often"},
		"wrong address":  {"ListenStream=127.0.0.1:8484", "ListenStream=127.0.0.1:84840", "84840"},
		"wrong backlog":  {"Backlog=", "Backlogs=", "Backlogs"},
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			brokenService, brokenSocket := strings.ReplaceAll(service, f.old, f.new), strings.ReplaceAll(socket, f.old, f.new)
			if brokenService == service && brokenSocket == socket {
				t.Fatalf("%q is in neither unit", f.old)
			}
			if found := verifyUnits(t, analyze, brokenService, brokenSocket); !strings.Contains(found, f.want) {
				t.Errorf("found %q, want it to say %q", found, f.want)
			}
		})
	}
}

// TestSocketUnitFitsTheDefaults: systemd's sockets are those of the configuration that
// needs no file, else the program would refuse them.
func TestSocketUnitFitsTheDefaults(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), program(t), "config", "default").Output()
	if err != nil {
		t.Fatal(err)
	}
	var defaults struct{ Listen, Admin struct{ Address string } }
	if err := yaml.Unmarshal(out, &defaults); err != nil {
		t.Fatal(err)
	}
	var streams []string
	for line := range strings.Lines(read(t, "systemd/warmwire.socket")) {
		if address, ok := strings.CutPrefix(strings.TrimSpace(line), "ListenStream="); ok {
			streams = append(streams, address)
		}
	}
	if want := []string{defaults.Listen.Address, defaults.Admin.Address}; !slices.Equal(streams, want) {
		t.Errorf("the unit has %q, the default configuration %q", streams, want)
	}
}

// TestUnitLeavesTimeToDrain holds the stop time-out against the default drain.
func TestUnitLeavesTimeToDrain(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "systemd/warmwire.service"), "\nTimeoutStopSec=")
	value, _, _ := strings.Cut(rest, "\n")
	stop, err := time.ParseDuration(value)
	if !ok || err != nil {
		t.Fatalf("TimeoutStopSec=%q: %v", value, err)
	}
	out, err := exec.CommandContext(t.Context(), program(t), "config", "default").Output()
	if err != nil {
		t.Fatal(err)
	}
	var defaults struct {
		Drain struct{ Wait, Timeout string }
	}
	if err := yaml.Unmarshal(out, &defaults); err != nil {
		t.Fatal(err)
	}
	wait, err1 := time.ParseDuration(defaults.Drain.Wait)
	timeout, err2 := time.ParseDuration(defaults.Drain.Timeout)
	if err1 != nil || err2 != nil || timeout == 0 || stop <= wait+timeout {
		t.Errorf("systemd kills after %v, the drain may take %v + %v (%v, %v)", stop, wait, timeout, err1, err2)
	}
}

// TestLaunchdPlist holds the file against the form of property lists and what the
// program needs; plutil is not here.
func TestLaunchdPlist(t *testing.T) {
	text := read(t, "launchd/com.github.warmwire.plist")
	for _, f := range plistFaults(text) {
		t.Error(f)
	}
	for name, f := range map[string]struct{ old, new, want string }{
		"not closed":     {"</array>", "", "syntax error"},
		"key without":    {"<key>RunAtLoad</key>\n\t<true/>", "<key>RunAtLoad</key>", "no value"},
		"killed":         {"<integer>40</integer>", "<integer>20</integer>", "ExitTimeOut"},
		"other program":  {"<string>run</string>", "<string>walk</string>", "ProgramArguments"},
		"unknown type":   {"<true/>", "<yes/>", "yes"},
		"starts for all": {"<key>KeepAlive</key>", "<key>KeepAliv</key>", "KeepAlive"},
	} {
		broken := strings.Replace(text, f.old, f.new, 1)
		if found := strings.Join(plistFaults(broken), "\n"); broken == text || !strings.Contains(found, f.want) {
			t.Errorf("%s: found %q, want %q", name, found, f.want)
		}
	}
}

// A node is one element.
type node struct {
	XMLName xml.Name
	Text    string `xml:",chardata"`
	Nodes   []node `xml:",any"`
}

func plistFaults(text string) (faults []string) {
	var root node
	if err := xml.Unmarshal([]byte(text), &root); err != nil {
		return []string{err.Error()}
	}
	if root.XMLName.Local != "plist" || len(root.Nodes) != 1 || root.Nodes[0].XMLName.Local != "dict" {
		return []string{"no plist with one dict"}
	}
	top, faults := entries(root.Nodes[0])
	args := make([]string, 0, 2)
	for _, n := range top["ProgramArguments"].Nodes {
		args = append(args, n.Text)
	}
	if !slices.Equal(args, []string{"/usr/local/bin/warmwire", "run"}) {
		faults = append(faults, fmt.Sprintf("ProgramArguments are %q", args))
	}
	// drain.wait and drain.timeout are 0 s and 25 s; the same time as in the unit.
	if top["ExitTimeOut"].Text != "40" {
		faults = append(faults, "ExitTimeOut is "+top["ExitTimeOut"].Text)
	}
	for _, key := range []string{"Label", "RunAtLoad", "KeepAlive"} {
		if top[key].XMLName.Local == "" {
			faults = append(faults, "no "+key)
		}
	}
	return faults
}

// entries reads a dict: keys and values by turns.
func entries(dict node) (map[string]node, []string) {
	out, faults := map[string]node{}, []string(nil)
	for i := 0; i < len(dict.Nodes); i += 2 {
		key := dict.Nodes[i]
		if key.XMLName.Local != "key" || i+1 == len(dict.Nodes) || dict.Nodes[i+1].XMLName.Local == "key" {
			return out, append(faults, key.Text+" has no value")
		}
		value := dict.Nodes[i+1]
		switch value.XMLName.Local {
		case "string", "integer", "true", "false", "array":
		case "dict":
			_, inside := entries(value)
			faults = append(faults, inside...)
		default:
			faults = append(faults, key.Text+" is of no type: "+value.XMLName.Local)
		}
		out[key.Text] = value
	}
	return out, faults
}

// TestManifestsHoldAValidConfiguration runs the program's own check on the
// configuration inside each manifest.
func TestManifestsHoldAValidConfiguration(t *testing.T) {
	for _, name := range []string{"kubernetes/sidecar.yaml", "kubernetes/job.yaml", "kubernetes/node.yaml", "kubernetes/socket.yaml"} {
		t.Run(name, func(t *testing.T) {
			var configMap struct{ Data map[string]string }
			first, _, _ := strings.Cut(read(t, name), "\n---\n")
			if err := yaml.Unmarshal([]byte(first), &configMap); err != nil {
				t.Fatal(err)
			}
			text := configMap.Data["warmwire.yaml"]
			path := filepath.Join(t.TempDir(), "warmwire.yaml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil || text == "" {
				t.Fatalf("configuration %q: %v", text, err)
			}
			cmd := exec.CommandContext(t.Context(), program(t), "config", "check", "-c", path)
			cmd.Env = append(os.Environ(), "WARMWIRE_TOKEN=of-the-secret-0123456789", "NODE_IP=10.0.0.5")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("config check: %v\n%s", err, out)
			}
		})
	}
}

// TestProgramRunsInAnEmptyRoot is what FROM scratch asks for: no library, no
// shell, no /etc, no /tmp, an unknown user. It is ready there and ends by SIGTERM.
func TestProgramRunsInAnEmptyRoot(t *testing.T) {
	testenv.NeedRoot(t)
	root := t.TempDir()
	for dir := root; dir != "/"; dir = filepath.Dir(dir) {
		if strings.HasPrefix(filepath.Base(dir), "Test") || dir == root {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(root, "warmwire"), []byte(read(t, program(t))), 0o755); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(root, "run") // what a pod would mount there
	if err := os.Mkdir(run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(run, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	const config = "listen: {address: unix:/run/proxy.sock}\nadmin: {address: unix:/run/admin.sock}\n"
	if err := os.WriteFile(filepath.Join(root, "warmwire.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	caged := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "/warmwire", args...)
		cmd.Dir, cmd.Env = "/", []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		return cmd
	}
	if out, err := caged("version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "warmwire ") {
		t.Fatalf("version: %v\n%s", err, out)
	}

	server := caged("run", "-c", "/warmwire.yaml")
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	waitReady(ctx, t, func() *exec.Cmd { return caged("health", "-c", "/warmwire.yaml") })
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v\n%s", err, log.String())
		}
	case <-ctx.Done():
		t.Error(server.Process.Kill(), "does not end by SIGTERM")
		<-ended
	}
}

// waitReady asks as a probe would, until the answer is yes.
func waitReady(ctx context.Context, t *testing.T, probe func() *exec.Cmd) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := probe().CombinedOutput()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not ready: %v\n%s", err, out)
		case <-tick.C:
		}
	}
}
