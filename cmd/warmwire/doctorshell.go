// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// probeTimeout bounds one question to an address that a variable names, and one to a
// program.
const probeTimeout = 2 * time.Second

// shellFindings says what is wrong with this shell and this machine.
func shellFindings(ctx context.Context, cfg *config.Config) (found []clientenv.Finding) {
	known := map[string]clientenv.Presence{}
	f := clientenv.Facts{Base: baseOf(cfg), Probe: func(address string) clientenv.Presence {
		if _, asked := known[address]; !asked {
			known[address] = whoAnswers(ctx, address)
		}
		return known[address]
	}}
	for _, u := range cfg.Upstreams {
		f.Upstreams = append(f.Upstreams, u.Name)
		if u.URL.Scheme == "https" {
			f.Hosts = append(f.Hosts, strings.ToLower(u.URL.Hostname()))
		}
	}
	f.Intercepting = len(cfg.Intercepted()) > 0
	// Beneath exec the Warmwire and its authority are those of that run.
	if own := os.Getenv("WARMWIRE_URL"); own != "" && own != f.Base && f.Probe(strings.TrimPrefix(own, "http://")) == clientenv.Warmwire {
		f.Base = own
	} else {
		found = authorityFindings(ctx, cfg, &f)
	}
	f.Node = versionOf(ctx, "node")
	_, err := exec.LookPath("java")
	f.Java = err == nil
	return slices.Concat(clientenv.Examine(os.LookupEnv, f), found, descriptorFindings(cfg))
}

// authorityFindings looks at the authority of the installation, and at where it is trusted.
func authorityFindings(ctx context.Context, cfg *config.Config, f *clientenv.Facts) (found []clientenv.Finding) {
	hosts := cfg.Intercepted()
	if len(hosts) == 0 {
		return nil
	}
	add := func(level clientenv.Level, code, mend, format string, args ...any) {
		found = append(found, clientenv.Finding{Code: code, Level: level, Mend: mend, Text: fmt.Sprintf(format, args...)})
	}
	now := time.Now()
	states, err := ca.Read(caDir(cfg), now)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		add(clientenv.Warning, "ca_missing", "warmwire ca path", "hosts are to be intercepted, and there is no authority yet")
		return found
	case err != nil:
		add(clientenv.Error, "ca_unusable", "", "%v", err)
		return found
	}
	permitted := map[string]bool{}
	for _, s := range states {
		f.Authorities = append(f.Authorities, s.Certificate)
		for _, host := range s.Hosts {
			permitted[host] = permitted[host] || s.Role != ca.Old
		}
		if warning := caWarning(s, now); warning != "" {
			level := clientenv.Warning
			if now.After(s.NotAfter) || now.Before(s.NotBefore) {
				level = clientenv.Error
			}
			add(level, "ca_expiry", "warmwire ca rotate", "the authority that signs: %s", warning)
		}
	}
	var missing []string
	for _, host := range hosts {
		if name, err := ca.Name(host); err == nil && !permitted[name] {
			missing = append(missing, host)
		}
	}
	if len(missing) > 0 {
		add(clientenv.Error, "ca_uncovered", "warmwire ca rotate", "the authority does not permit %s, listed later: they are tunnelled untouched until a new one is made and trusted", strings.Join(missing, ", "))
	}
	plan, err := thisMachine().Install(ctx, caDir(cfg), f.Authorities...)
	if err != nil {
		add(clientenv.Note, "stores_unreadable", "", "stores of certificates: %v", err)
	}
	browsers := false
	f.SystemTrusts = err == nil
	for _, step := range plan.Steps {
		if len(step.Args) > 0 && strings.HasSuffix(step.Args[0], "certutil") {
			browsers = true
		} else {
			f.SystemTrusts = false
		}
	}
	if !f.SystemTrusts && err == nil {
		add(clientenv.Note, "ca_not_in_system", "warmwire ca install", "the system's store does not have the authority: programs without a variable of their own refuse our certificate")
	}
	if browsers {
		add(clientenv.Note, "ca_not_in_browsers", "warmwire ca install", "databases of Chromium or Firefox do not have the authority")
	}
	return found
}

// whoAnswers asks for the front page, and knows a Warmwire by how it refuses.
func whoAnswers(ctx context.Context, address string) clientenv.Presence {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return clientenv.Nobody
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return clientenv.Other
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return clientenv.Other
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 64<<10)), nil)
	if err != nil {
		return clientenv.Other
	}
	defer resp.Body.Close()
	if strings.HasPrefix(strings.ToLower(resp.Header.Get("Proxy-Status")), "warmwire") {
		return clientenv.Warmwire
	}
	return clientenv.Other
}

// versionOf asks a program for its version; "" = there is none, or it does not tell.
func versionOf(ctx context.Context, program string) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env = clientenv.Apply(os.Environ(), []clientenv.Variable{{Name: "NODE_OPTIONS"}}) // they may not let it start
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return version
}

// printShell writes findings for people.
func printShell(out io.Writer, found []clientenv.Finding) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(out, "this shell and machine: nothing to mend")
		return err
	}
	return printFound(out, found)
}

func printFound(out io.Writer, found []clientenv.Finding) error {
	for _, f := range found {
		if _, err := fmt.Fprintf(out, "%s: %s (%s)\n", f.Level, f.Text, f.Code); err != nil {
			return err
		}
		if f.Mend == "" {
			continue
		}
		if _, err := fmt.Fprintf(out, "  mend it with: %s\n", f.Mend); err != nil {
			return err
		}
	}
	return nil
}
