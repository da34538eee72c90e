// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// interception opens the authority if there is a host that needs it.
func (s *Sidecar) interception(cfg *config.Config) (ingress.Intercept, error) {
	hosts := cfg.Intercepted()
	if len(hosts) == 0 {
		return ingress.Intercept{}, nil
	}
	if s.authority = s.opt.Authority; s.authority == nil {
		machine, _ := os.Hostname() // without one it is localhost
		var err error
		if s.authority, err = ca.Open(filepath.Join(cfg.StateDir, "ca"), ca.Config{Hosts: hosts, Machine: machine}); err != nil {
			return ingress.Intercept{}, fmt.Errorf("intercept.hosts: %w", err)
		}
	}
	if err := s.authority.Covers(hosts...); err != nil {
		s.log.Warn("intercept.hosts: these are tunnelled untouched until warmwire ca rotate", "error", err.Error())
	}
	s.intercepted = hosts
	return ingress.Intercept{Hosts: hosts, Certificate: s.authority.Certificate}, nil
}

// troubleLogEvery limits how often the same kind of trouble is logged.
const troubleLogEvery = 10 * time.Second

// interceptTrouble logs why a tunnel to a listed host is not what it should be.
func (s *Sidecar) interceptTrouble() func(host string, err error) {
	var last atomic.Int64 // Unix nanoseconds
	return func(host string, err error) {
		now := time.Now().UnixNano()
		if was := last.Load(); now-was > int64(troubleLogEvery) && last.CompareAndSwap(was, now) {
			s.log.Warn("a tunnel to a host of intercept.hosts has gone wrong", "host", host, "error", err.Error())
		}
	}
}

// distrusted says once that a host is left alone, and what mends it.
func (s *Sidecar) distrusted(host string, until time.Time) {
	s.log.Warn("apps do not accept Warmwire's certificate: for apps of their kind the host is tunnelled untouched for a while. Make them trust it "+
		"(warmwire ca install, or warmwire ca path for those with certificates of their own), then POST /v1/intercept/clear; "+
		"or list the host in intercept.blind", "host", host, "until", until.UTC().Format(time.RFC3339))
}

// wantsClientCertificate says the same of a host that wants the app's own certificate.
func (s *Sidecar) wantsClientCertificate(host string, until time.Time) {
	s.log.Warn("the host wants a client certificate and Warmwire has none for it: it is tunnelled untouched for a while. "+
		"Set tls.client_cert of its upstream, or list the host in intercept.blind", "host", host, "until", until.UTC().Format(time.RFC3339))
}

// An interceptStatus is what status shows of interception; never a key.
type interceptStatus struct {
	Hosts       []string          `json:"hosts"`
	Blind       []exceptionStatus `json:"blind"` // for a while
	Authorities []authorityStatus `json:"authorities"`
	Error       string            `json:"error,omitempty"` // why a change of the authority is not in use
}

type exceptionStatus struct {
	Host   string    `json:"host"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`           // untrusted or client_certificate
	Client string    `json:"client,omitempty"` // the kind of client for which it is, a hash of its ClientHello; "" = for all
}

type authorityStatus struct {
	Role    string    `json:"role"`
	SHA256  string    `json:"sha256"`
	Expires time.Time `json:"expires"`
}

func (s *Sidecar) interceptStatus() *interceptStatus {
	if s.authority == nil {
		return nil
	}
	st := &interceptStatus{Hosts: slices.Clone(s.intercepted), Blind: []exceptionStatus{}}
	for _, e := range s.ingress.Exceptions() {
		one := exceptionStatus{Host: e.Host, Until: e.Until.UTC(), Reason: string(e.Reason)}
		if e.Client != 0 {
			one.Client = fmt.Sprintf("%016x", e.Client)
		}
		st.Blind = append(st.Blind, one)
	}
	states, err := s.authority.States()
	if err != nil {
		st.Error = err.Error()
	}
	for _, a := range states {
		st.Authorities = append(st.Authorities, authorityStatus{string(a.Role), a.Fingerprint, a.NotAfter.UTC()})
	}
	return st
}
