// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// A childTrust is what one child trusts for the hosts that are intercepted. Its
// authority is in memory: nothing signs with it after this run. The zero value is for
// a child of which nothing is intercepted.
type childTrust struct {
	authority *ca.Authority
	dir       string // of the files
	variables map[string]string
}

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

// Variables that name a file with certificates. Some replace what a client trusts, the
// others add to it.
var (
	replacing = []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
	adding    = []string{"NODE_EXTRA_CA_CERTS", "DENO_CERT"}
)

// newChildTrust makes the authority and the files. What the child trusted by a variable
// before, it trusts after.
func newChildTrust(ctx context.Context, cfg *config.Config, getenv config.Env) (t childTrust, err error) {
	hosts := cfg.Intercepted()
	if len(hosts) == 0 {
		return childTrust{}, nil
	}
	if t.authority, err = ca.New(ca.Config{Hosts: hosts, Machine: "exec"}); err != nil {
		return childTrust{}, fmt.Errorf("intercept.hosts: %w", err)
	}
	roots, err := systemRoots(ctx)
	if err != nil {
		return childTrust{}, err
	}
	if t.dir, err = os.MkdirTemp("", "warmwire-exec-"); err != nil {
		return childTrust{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.remove())
		}
	}()
	t.variables = map[string]string{"NODE_USE_ENV_PROXY": "1"}
	for _, l := range []struct {
		variables []string
		text      []byte // that the client has anyway
	}{{replacing, roots}, {adding, nil}} {
		for _, name := range l.variables {
			before, err := namedFile(name, getenv)
			if err != nil {
				return t, err
			}
			text := bytes.Join([][]byte{before, ca.PEM(t.authority.Certificates()...)}, []byte("\n"))
			if l.text != nil {
				if text, err = ca.Bundle(append(append(l.text[:len(l.text):len(l.text)], '\n'), before...), t.authority.Certificates()...); err != nil {
					return t, err
				}
			}
			t.variables[name] = filepath.Join(t.dir, name+".pem")
			if err := ca.WritePublic(t.variables[name], text); err != nil {
				return t, err
			}
		}
	}
	return t, nil
}

// namedFile reads the file that a variable names. A folder, which some clients take, is
// left out, and so is a file that is not there: the child did not have it either.
func namedFile(variable string, getenv config.Env) ([]byte, error) {
	path, _ := getenv(variable)
	info, err := os.Stat(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return text, nil
}

// remove takes the files away.
func (t childTrust) remove() error {
	if t.dir == "" {
		return nil
	}
	return os.RemoveAll(t.dir)
}
