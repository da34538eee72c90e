// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/mockapi"
)

// TestTLSScripts runs the specification of what examines and times TLS.
func TestTLSScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/tls", Setup: setUpTLS})
}

// setUpTLS gives a script a model API (TLS, PLAIN and ca.pem), one that speaks
// TLS 1.2 only (TLS12, ca12.pem) and a port that never says a word (MUTE).
func setUpTLS(env *testscript.Env) error {
	if err := setUpScript(env); err != nil {
		return err
	}
	for suffix, version := range map[string]uint16{"": tls.VersionTLS13, "12": tls.VersionTLS12} {
		api, err := mockapi.New(mockapi.Config{MaxVersion: version})
		if err != nil {
			return err
		}
		if err := api.Listen(); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = api.Run(ctx) })
		env.Defer(func() { cancel(); running.Wait() })
		if err := os.WriteFile(env.WorkDir+"/ca"+suffix+".pem", api.CAPEM(), 0o600); err != nil {
			return err
		}
		for name, address := range map[string]string{"TLS": api.TLSURL(), "PLAIN": api.URL()} {
			u, err := url.Parse(address)
			if err != nil {
				return err
			}
			env.Setenv(name+suffix, u.Port())
		}
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			listening.Go(func() {
				defer c.Close()
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	env.Defer(func() { _ = mute.Close(); listening.Wait() })
	_, port, err := net.SplitHostPort(mute.Addr().String())
	env.Setenv("MUTE", port)
	return err
}

func TestDoctorReadsItsTargets(t *testing.T) {
	for arg, want := range map[string]string{
		"api.test": "api.test 443", "API.test:8443": "api.test 8443", "::1": "::1 443", "[::1]:8443": "::1 8443", "192.0.2.1:1": "192.0.2.1 1",
		"https://api.test/v1": "api.test 443", "https://api.test:8443": "api.test 8443",
		"http://api.test": "error", "api.test:0": "error", "api.test:http": "error", "api.test:70000": "error", ":443": "error", "https://u:planted@api.test": "error",
	} {
		host, port, err := splitTarget(arg)
		got := "error"
		if err == nil {
			got = fmt.Sprintf("%s %d", host, port)
		} else if strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: the error shows a secret", arg)
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", arg, got, err, want)
		}
	}
}

func TestDoctorMeetsUpstreamsAsConfigured(t *testing.T) {
	dir := t.TempDir()
	api, err := mockapi.New(mockapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ca := dir + "/ca.pem"
	if err := os.WriteFile(ca, api.CAPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	text := "upstreams:\n  a: {url: 'https://127.0.0.1:8443', protocols: [http/1.1], tls: {ca_file: '" + ca + "', min_version: '1.3'}}\n" +
		"  only: {url: 'https://127.0.0.3', tls: {ca_file: '" + ca + "', ca_only: true, intermediates_file: '" + ca + "'}}\n" +
		"  b: {url: 'http://127.0.0.1:8080'}\n  c: {url: 'https://127.0.0.2'}\n"
	cfg, _, err := config.Parse("test", []byte(text), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	all, err := doctorFlags{}.targets(cfg, nil)
	if err != nil || len(all) != 4 {
		t.Fatalf("%v, %+v", err, all)
	}
	system, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	var a, only target
	for _, u := range all {
		switch u.upstream {
		case "a":
			a = u
		case "only":
			only = u
		case "b":
			if u.tls {
				t.Errorf("plain HTTP: %+v", u)
			}
		case "c":
			if u.roots != nil || u.port != 443 || u.rootsAsked != "the system's roots" {
				t.Errorf("%+v", u)
			}
		}
	}
	if a.upstream != "a" || a.port != 8443 || !a.tls || a.minVersion != tls.VersionTLS13 || len(a.alpn) != 1 || a.roots == nil || a.roots.Equal(system) ||
		!strings.HasSuffix(a.rootsAsked, "and "+ca) {
		t.Errorf("%+v", a)
	}
	if only.upstream != "only" || !only.roots.Equal(api.CertPool()) || only.rootsAsked != ca || len(only.intermediates) != 1 {
		t.Errorf("%+v", only)
	}
	named, err := doctorFlags{}.targets(cfg, []string{"127.0.0.1:8443", "127.0.0.1"})
	if err != nil || len(named) != 2 || named[0].upstream != "a" || named[0].roots == nil || named[1].upstream != "" {
		t.Errorf("%v, %+v", err, named)
	}
}
