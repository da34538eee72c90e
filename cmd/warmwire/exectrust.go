// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress/peer"
	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// interceptUpstreams lists the hosts of all https upstreams, the built-in ones too.
func interceptUpstreams(cfg *config.Config) {
	cfg.Intercept.Hosts = nil
	for _, u := range cfg.Upstreams {
		if u.URL.Scheme == "https" {
			if name, err := ca.Name(u.URL.Hostname()); err == nil { // others have no certificate
				cfg.Intercept.Hosts = append(cfg.Intercept.Hosts, name)
			}
		}
	}
}

// ownAuthority is of one run: nothing signs with it afterwards. It is nil if nothing is
// intercepted.
func ownAuthority(cfg *config.Config) (*ca.Authority, error) {
	hosts := cfg.Intercepted()
	if len(hosts) == 0 {
		return nil, nil
	}
	return ca.New(ca.Config{Hosts: hosts, Machine: "exec"})
}

// toldOf are the upstreams that are told of by base URL. An intercepted one needs none:
// its clients keep their own, and what some of them switch off for a foreign one.
func (f execFlags) toldOf(cfg *config.Config) (names []string) {
	hosts := cfg.Intercepted()
	for _, u := range cfg.Upstreams {
		if f.baseURLs || u.URL.Scheme != "https" || !slices.Contains(hosts, strings.ToLower(u.URL.Hostname())) {
			names = append(names, u.Name)
		}
	}
	return names
}

// parentInEnv says whether the environment names a proxy.
func parentInEnv(env config.Env) bool {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		if value, _ := env(name); value != "" {
			return true
		}
	}
	return false
}

// A running is a Warmwire that serves this configuration already.
type running struct {
	base        string
	hosts       []string // that it intercepts
	authorities []*x509.Certificate
}

// serves says whether it does for cfg what one of its own would do.
func (r running) serves(cfg *config.Config) bool {
	wanted := cfg.Intercepted()
	if len(wanted) == 0 {
		return len(r.hosts) == 0 // its certificates would not be trusted
	}
	return len(r.authorities) > 0 && !slices.ContainsFunc(wanted, func(host string) bool { return !slices.Contains(r.hosts, host) })
}

// runningStatus is what is used of /v1/status.
type runningStatus struct {
	Listen    []string `json:"listen"`
	Draining  bool     `json:"draining"`
	Intercept *struct {
		Hosts       []string `json:"hosts"`
		Authorities []struct {
			SHA256 string `json:"sha256"`
		} `json:"authorities"`
	} `json:"intercept"`
}

// findRunning asks the addresses of cfg. Keys of model calls go there: what another user
// has put on the port is none, and neither is one whose authority is not ours.
func findRunning(ctx context.Context, cfg *config.Config) (r running, found bool) {
	if !cfg.Admin.Enabled() || cfg.Listen.Token != "" {
		return r, false
	}
	var st runningStatus
	if err := readRunning(ctx, cfg, "/v1/status", &st); err != nil || st.Draining {
		return r, false
	}
	for _, address := range cfg.Listen.Addresses {
		if address = dialable(address); !strings.HasPrefix(address, "unix:") && trustworthy(ctx, address) {
			r.base = "http://" + address
			break
		}
	}
	if r.base == "" {
		return r, false
	}
	if st.Intercept == nil {
		return r, true
	}
	r.hosts = st.Intercept.Hosts
	states, err := ca.Read(caDir(cfg), time.Now())
	if err != nil {
		return r, true
	}
	for _, s := range states {
		r.authorities = append(r.authorities, s.Certificate)
	}
	for _, a := range st.Intercept.Authorities {
		if !slices.ContainsFunc(states, func(s ca.State) bool { return s.Fingerprint == a.SHA256 }) {
			r.authorities = nil
		}
	}
	return r, true
}

// trustworthy says whether this user or root listens at a local address. Where the system
// does not tell, it is as good as an address that a user types.
func trustworthy(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(healthTimeout)) // a connection of TCP has deadlines
	// Only who has accepted the connection can answer, and is seen as its owner while it
	// keeps the connection: it must not be asked to close it.
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return false
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return false
	}
	who, err := peer.Look(conn)
	if err != nil || !who.Seen {
		return runtime.GOOS != "linux"
	}
	return who.Owned && (who.UID == 0 || int(who.UID) == os.Geteuid())
}
