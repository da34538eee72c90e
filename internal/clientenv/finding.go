// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strings"
)

// A Level says how bad a finding is.
type Level string

// The levels.
const (
	Error   Level = "error"   // something that is set does not do what it was set for
	Warning Level = "warning" // some programs go past, or will fail
	Note    Level = "note"
)

// A Finding is one thing to know of, with what mends it.
type Finding struct {
	Code  string `json:"code"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Mend  string `json:"mend,omitempty"` // a command; "" = there is none
}

// A Presence says who answers at an address.
type Presence int

// The presences.
const (
	Nobody Presence = iota
	Other
	Warmwire
)

// Facts are what an environment is examined against.
type Facts struct {
	Base      string                         // where the Warmwire of the configuration listens; "" = by no TCP address
	Probe     func(hostPort string) Presence // asked once or more for each address
	Upstreams []string                       // names
	Hosts     []string                       // of model APIs

	// Intercepting says that certificates of ours are met, Authorities by whom they are signed;
	// nil = by any of ours.
	Intercepting bool
	Authorities  []*x509.Certificate
	SystemTrusts bool // the authorities are in the system's store

	Node string // version of the node in PATH, as in v20.1.0; "" = none
	Java bool   // there is one
}

// EnvCommand is what mends most findings.
const EnvCommand = `eval "$(warmwire env)"`

// Examine says what of an environment leads programs elsewhere, or lets them fail. The
// order is that of the way of a call.
func Examine(env Env, f Facts) []Finding {
	x := &examination{env: env, facts: f}
	x.listener()
	x.proxies()
	x.baseURLs()
	x.noProxy()
	x.node()
	x.java()
	x.trust()
	return x.found
}

// An examination is one call of Examine.
type examination struct {
	env   Env
	facts Facts
	found []Finding

	led bool // some proxy variable leads to a Warmwire
}

func (x *examination) add(level Level, code, mend, format string, args ...any) {
	x.found = append(x.found, Finding{code, level, fmt.Sprintf(format, args...), mend})
}

func (x *examination) listener() {
	if x.facts.Base == "" {
		x.add(Warning, "no_tcp_listener", "", "listen.address has no TCP address: proxy variables and most SDKs take no other")
		return
	}
	address := strings.TrimPrefix(x.facts.Base, "http://")
	switch x.facts.Probe(address) {
	case Nobody:
		x.add(Warning, "not_running", "warmwire run", "nothing listens at %s: no Warmwire runs with this configuration", address)
	case Other:
		x.add(Error, "port_taken", "", "what listens at %s is no Warmwire: stop it, or choose another listen.address", address)
	}
}

// trust looks at the files that variables name.
func (x *examination) trust() {
	var unset, lacking []string
	for _, v := range trustVariables {
		path := x.env.get(v.name)
		if path == "" {
			if x.facts.Intercepting && x.led && !v.kept && !(x.facts.SystemTrusts && v.name != "REQUESTS_CA_BUNDLE" && !v.adds) {
				unset = append(unset, v.name+" ("+v.who+")")
			}
			continue
		}
		text, err := readCertificates(path)
		others, ours := x.count(text)
		switch {
		case err != nil || text == nil && !isFolder(path):
			x.add(Error, "ca_file_unreadable", EnvCommand, "%s names %s, which cannot be read: %s trust nobody, or not us", v.name, path, v.who)
		case text == nil:
			continue // a folder: what is in it is not looked at
		case x.facts.Intercepting && x.led && !ours:
			lacking = append(lacking, v.name+" ("+v.who+")")
		case ours && others == 0 && !v.adds:
			x.add(Error, "ca_file_lacks_roots", EnvCommand, "%s names a file with our authority alone, and it stands in the place of the system's roots: %s fail at all other hosts", v.name, v.who)
		}
	}
	if len(lacking) > 0 {
		x.add(Error, "ca_not_in_file", EnvCommand, "Warmwire's authority is not in the files of %s: intercepted hosts fail there", strings.Join(lacking, ", "))
	}
	if len(unset) > 0 {
		x.add(Warning, "ca_unset", EnvCommand, "hosts are intercepted, and these do not say whom to trust: %s", strings.Join(unset, ", "))
	}
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// count tells how many certificates are not ours, and whether all of ours are there.
func (x *examination) count(text []byte) (others int, ours bool) {
	var have []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if isOurs(cert) {
			have = append(have, cert)
		} else {
			others++
		}
	}
	if len(x.facts.Authorities) == 0 {
		return others, len(have) > 0
	}
	return others, !slices.ContainsFunc(x.facts.Authorities, func(a *x509.Certificate) bool { return !slices.ContainsFunc(have, a.Equal) })
}
