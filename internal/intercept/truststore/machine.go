// SPDX-License-Identifier: Apache-2.0

package truststore

import (
	"context"
	"crypto/sha1" // how macOS names certificates
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// prefix begins the name of each of ours.
const prefix = "warmwire-"

// A Machine is where certificates are to be trusted.
type Machine struct {
	OS   string // as runtime.GOOS
	Home string // of the user whose browsers are meant; "" = none
	Root string // stands before the system's paths; "" in life

	// LookPath finds a program, and Run runs one and returns what it prints. nil =
	// those of os/exec.
	LookPath func(name string) (string, error)
	Run      func(ctx context.Context, argv []string) ([]byte, error)
}

// A Step is one command.
type Step struct {
	Args []string
	Root bool // only root can
}

// String is the command as a shell takes it.
func (s Step) String() string {
	words := make([]string, len(s.Args))
	for i, arg := range s.Args {
		words[i] = quote(arg)
	}
	return strings.Join(words, " ")
}

// quote makes one word of a shell of s.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@%+,", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// A Plan is what is to be done, in this order.
type Plan struct {
	Steps []Step
	Notes []string // what was found, and what cannot be done
}

// Name is how a certificate is called in the stores and as a file.
func Name(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return prefix + hex.EncodeToString(sum[:8])
}

// Install plans to make this machine trust certs, each of which is in folder dir as a
// PEM file with its Name and .crt.
func (m Machine) Install(ctx context.Context, dir string, certs ...*x509.Certificate) (Plan, error) {
	return m.plan(ctx, "has it already", func(s store, have []entry) (steps []Step) {
		for _, cert := range certs {
			if !slices.ContainsFunc(have, func(e entry) bool { return e.name == Name(cert) }) {
				steps = append(steps, s.add(filepath.Join(dir, Name(cert)+".crt"), Name(cert)))
			}
		}
		return steps
	})
}

// Uninstall plans to remove all of ours but those of keep.
func (m Machine) Uninstall(ctx context.Context, keep ...*x509.Certificate) (Plan, error) {
	return m.plan(ctx, "has none to remove", func(s store, have []entry) (steps []Step) {
		for _, e := range have {
			if !slices.ContainsFunc(keep, func(cert *x509.Certificate) bool { return e.name == Name(cert) }) {
				steps = append(steps, s.remove(e))
			}
		}
		return steps
	})
}

// plan collects the steps for each store that can be read; nothing is what is said of one
// that needs none.
func (m Machine) plan(ctx context.Context, nothing string, steps func(s store, have []entry) []Step) (Plan, error) {
	var plan Plan
	var faults []error
	for _, s := range m.stores(&plan) {
		have, err := s.list(ctx, m)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		plan.take(s, steps(s, have), nothing)
	}
	return plan, errors.Join(faults...)
}

// take adds the steps for one store.
func (p *Plan) take(s store, steps []Step, none string) {
	if len(steps) == 0 {
		p.Notes = append(p.Notes, s.title()+" "+none)
		return
	}
	p.Steps = append(append(p.Steps, steps...), s.refresh()...)
}

// Do runs one step.
func (m Machine) Do(ctx context.Context, s Step) error {
	_, err := m.run(ctx, s.Args...)
	return err
}

func (m Machine) run(ctx context.Context, argv ...string) ([]byte, error) {
	if m.Run != nil {
		return m.Run(ctx, argv)
	}
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", Step{Args: argv}, err, strings.TrimSpace(string(out[:min(len(out), 1000)])))
	}
	return out, nil
}

// find returns the path of a program; the sbin folders are in root's PATH only.
func (m Machine) find(program string) (string, bool) {
	look := m.LookPath
	if look == nil {
		look = exec.LookPath
	}
	for _, name := range []string{program, "/usr/sbin/" + program} {
		if path, err := look(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// An entry is a certificate of ours in a store.
type entry struct {
	name string
	id   string // what the store calls it
}

// A store is a place where trust is kept.
type store interface {
	title() string
	list(context.Context, Machine) ([]entry, error) // of ours
	add(file, name string) Step
	remove(entry) Step
	refresh() []Step // after the others
}

// stores are those of this machine.
func (m Machine) stores(plan *Plan) []store {
	var list []store
	switch m.OS {
	case "darwin":
		list = append(list, keychain{filepath.Join(m.Root, "/Library/Keychains/System.keychain")})
	case "linux":
		if s, ok := m.anchors(); ok {
			list = append(list, s)
		} else {
			plan.Notes = append(plan.Notes, "this system has no store that is known here (Debian: apt-get install ca-certificates)")
		}
	default:
		plan.Notes = append(plan.Notes, "the store of this system is not known here")
	}
	databases := m.databases()
	if len(databases) == 0 {
		return list
	}
	certutil, ok := m.find("certutil")
	if !ok {
		plan.Notes = append(plan.Notes, fmt.Sprintf("there are %d databases of browsers (%s, …), but no certutil to change them with (Debian: apt-get install libnss3-tools)", len(databases), databases[0]))
		return list
	}
	for _, dir := range databases {
		list = append(list, nss{certutil, dir})
	}
	return list
}

// anchors is a folder of files from which a program makes the system's store.
type anchors struct {
	dir   string
	renew []string
}

// anchorFolders are those of Linux distributions.
var anchorFolders = []struct{ dir, program string }{
	{"/usr/local/share/ca-certificates", "update-ca-certificates"},   // Debian, Ubuntu, Alpine, Gentoo
	{"/etc/pki/ca-trust/source/anchors", "update-ca-trust"},          // Fedora, RHEL
	{"/etc/pki/trust/anchors", "update-ca-certificates"},             // openSUSE
	{"/etc/ca-certificates/trust-source/anchors", "update-ca-trust"}, // Arch
}

func (m Machine) anchors() (anchors, bool) {
	for _, place := range anchorFolders {
		dir := filepath.Join(m.Root, place.dir)
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		program, ok := m.find(place.program)
		if !ok {
			continue
		}
		renew := []string{program}
		if m.Root != "" && place.program == "update-ca-certificates" {
			renew = append(renew, "--localcertsdir", dir, "--certsconf", filepath.Join(m.Root, "/etc/ca-certificates.conf"),
				"--certsdir", filepath.Join(m.Root, "/usr/share/ca-certificates"), "--etccertsdir", filepath.Join(m.Root, "/etc/ssl/certs"),
				"--hooksdir", filepath.Join(m.Root, "/etc/ca-certificates/update.d"))
		}
		return anchors{dir, renew}, true
	}
	return anchors{}, false
}

func (a anchors) title() string { return "the system's store (" + a.dir + ")" }

func (a anchors) list(context.Context, Machine) ([]entry, error) {
	files, err := os.ReadDir(a.dir)
	if err != nil {
		return nil, fmt.Errorf("truststore: %w", err)
	}
	var found []entry
	for _, f := range files {
		name, isCert := strings.CutSuffix(f.Name(), ".crt")
		if isCert && ours(name) {
			found = append(found, entry{name, filepath.Join(a.dir, f.Name())})
		}
	}
	return found, nil
}

// ours says that a name is one that Name makes.
func ours(name string) bool {
	id, found := strings.CutPrefix(name, prefix)
	_, err := hex.DecodeString(id)
	return found && len(id) == 16 && err == nil
}

func (a anchors) add(file, name string) Step {
	return Step{[]string{"install", "-m", "0644", file, filepath.Join(a.dir, name+".crt")}, true}
}

func (a anchors) remove(e entry) Step { return Step{[]string{"rm", "-f", e.id}, true} }
func (a anchors) refresh() []Step     { return []Step{{a.renew, true}} }

// keychain is the system's on macOS.
type keychain struct{ path string }

func (k keychain) title() string { return "the system's keychain" }

func (k keychain) list(ctx context.Context, m Machine) ([]entry, error) {
	out, err := m.run(ctx, "security", "find-certificate", "-a", "-p", "-c", "Warmwire", k.path)
	if err != nil {
		return nil, nil // it fails if there is none
	}
	var found []entry
	for block, rest := pem.Decode(out); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !slices.Equal(cert.Subject.Organization, []string{"Warmwire"}) {
			continue
		}
		sum := sha1.Sum(cert.Raw)
		found = append(found, entry{Name(cert), strings.ToUpper(hex.EncodeToString(sum[:]))})
	}
	return found, nil
}

// add trusts for TLS only.
func (k keychain) add(file, _ string) Step {
	return Step{[]string{"security", "add-trusted-cert", "-d", "-r", "trustRoot", "-p", "ssl", "-k", k.path, file}, true}
}

func (k keychain) remove(e entry) Step {
	return Step{[]string{"security", "delete-certificate", "-t", "-Z", e.id, k.path}, true}
}

func (k keychain) refresh() []Step { return nil }

// nss is a database of Mozilla's library, which Chromium uses on Linux.
type nss struct{ certutil, dir string }

// databases are those that browsers of the user have made.
func (m Machine) databases() []string {
	if m.Home == "" {
		return nil
	}
	var found []string
	for _, pattern := range []string{
		".pki/nssdb", ".local/share/pki/nssdb", "snap/chromium/current/.pki/nssdb", // Chromium
		".mozilla/firefox/*", ".config/mozilla/firefox/*", "snap/firefox/common/.mozilla/firefox/*", "Library/Application Support/Firefox/Profiles/*",
	} {
		// The pattern is relative, so that what is special in the home's own path is not.
		matches, err := fs.Glob(os.DirFS(m.Home), pattern+"/cert9.db")
		if err != nil {
			panic("truststore: internal error: " + err.Error()) // a wrong pattern
		}
		for _, match := range matches {
			found = append(found, filepath.Join(m.Home, filepath.Dir(match)))
		}
	}
	return found
}

func (n nss) title() string { return "the browser's database " + n.dir }

func (n nss) list(ctx context.Context, m Machine) ([]entry, error) {
	out, err := m.run(ctx, n.certutil, "-L", "-d", "sql:"+n.dir)
	if err != nil {
		return nil, fmt.Errorf("truststore: %w", err)
	}
	var found []entry
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); len(words) > 0 && ours(words[0]) {
			found = append(found, entry{words[0], words[0]})
		}
	}
	return found, nil
}

// add trusts for TLS servers only.
func (n nss) add(file, name string) Step {
	return Step{[]string{n.certutil, "-A", "-d", "sql:" + n.dir, "-t", "C,,", "-n", name, "-i", file}, false}
}

func (n nss) remove(e entry) Step {
	return Step{[]string{n.certutil, "-D", "-d", "sql:" + n.dir, "-n", e.id}, false}
}

func (n nss) refresh() []Step { return nil }
