// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/tlspool"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport"
)

// buildTLS sets up whom an upstream trusts, who we are to it, and its sessions.
func (s *Sidecar) buildTLS(tc *transport.Config, u config.Upstream, ca, intermediates []byte, pick picker) error {
	var err error
	tc.Sessions = s.sessions
	tc.Trust, err = trust.New(trust.Config{
		CA: ca, Only: u.TLS.CAOnly, Intermediates: intermediates, Pins: u.TLS.Pins, PinsReportOnly: u.TLS.PinsReportOnly,
		Store: s.roots, OnFailure: s.onUntrusted(u.Name),
	})
	if err != nil {
		return err
	}
	if u.TLS.MinVersion == "1.3" {
		tc.MinVersion = tls.VersionTLS13
	}
	if u.TLS.ClientCert != "" {
		if tc.ClientCert, err = trust.LoadClientCert(u.TLS.ClientCert, u.TLS.ClientKey); err != nil {
			return err
		}
	}
	if u.TLS.ECH == "auto" {
		tc.ECH = func(ctx context.Context, addr string) []byte {
			host, ok := lookedUp(addr, pick)
			if !ok {
				return nil
			}
			return s.echOf(ctx, host, addr)
		}
	}
	return nil
}

// onUntrusted counts certificates that were refused.
func (s *Sidecar) onUntrusted(upstream string) func(trust.Reason, bool) {
	return func(reason trust.Reason, reportOnly bool) { s.metrics.Untrusted(upstream, string(reason), reportOnly) }
}

const (
	sessionsSaved = 5 * time.Minute  // how often; a crash costs the tickets since then
	ticketsLooked = time.Minute      // how often for those that are too old soon
	trustLooked   = 10 * time.Second // how often whether roots or client certificates have changed
	ticketShare   = 0.2              // of its life is left: a new one is fetched
)

// loadSessions takes the sessions of the last run. What is wrong with the file costs
// its warmth only.
func (s *Sidecar) loadSessions(cfg *config.Config) error {
	if cfg.TLS.SessionFile == "" {
		return nil
	}
	key, err := base64.StdEncoding.DecodeString(cfg.TLS.SessionKey)
	if err != nil { // the error would quote it
		return errors.New("tls.session_key is not 32 bytes in base64")
	}
	s.sessionFile = tlspool.File{Path: cfg.TLS.SessionFile, Key: key}
	// A folder that cannot be made is told of when the file is written.
	_ = os.MkdirAll(filepath.Dir(cfg.TLS.SessionFile), 0o700)
	if err := s.sessions.Load(s.sessionFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("tls: starting without the sessions of the last run", "file", cfg.TLS.SessionFile, "error", err.Error())
	}
	return nil
}

// keepSessions writes them now and then and at the end, and fetches new ones for
// origins that are kept ready.
func (s *Sidecar) keepSessions(ctx context.Context) {
	refused := make(map[string]string) // upstreams, with why their certificate on disk is not in use
	save, look, recheck := time.NewTicker(sessionsSaved), time.NewTicker(ticketsLooked), time.NewTicker(trustLooked)
	defer save.Stop()
	defer recheck.Stop()
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			if !s.succeeded() { // else the files are the successor's
				s.saveSessions((*tlspool.Store).Save)
				s.saveIdleLimits()
			}
			return
		case <-save.C:
			s.saveSessions((*tlspool.Store).SaveSpare)
			s.saveIdleLimits()
		case <-recheck.C:
			for name, b := range s.shown.Load().upstreams {
				b.transport.Recheck()
				s.tellRefused(refused, name, b.cert)
			}
		case now := <-look.C:
			s.refreshSessions(ctx, now)
		}
	}
}

// tellRefused logs once why a client certificate that was replaced is not in use.
func (s *Sidecar) tellRefused(told map[string]string, name string, cert *trust.ClientCert) {
	text := ""
	if cert != nil && cert.Err() != nil {
		text = cert.Err().Error()
	}
	if text != "" && text != told[name] {
		s.log.Warn("tls: the client certificate on disk is not in use, the one before it is", "upstream", name, "error", text,
			"expires", cert.NotAfter().UTC().Format(time.RFC3339))
	}
	told[name] = text
}

func (s *Sidecar) saveSessions(save func(*tlspool.Store, tlspool.File) error) {
	if s.sessionFile.Path == "" {
		return
	}
	err := save(s.sessions, s.sessionFile)
	if err == nil {
		s.sessionsUnsaved.Store(false)
	} else if !s.sessionsUnsaved.Swap(true) { // told once
		s.log.Warn("tls: the sessions could not be written", "file", s.sessionFile.Path, "error", err.Error())
	}
}

func (s *Sidecar) refreshSessions(ctx context.Context, now time.Time) {
	for _, key := range s.sessions.Expiring(now, ticketShare) {
		for name, b := range s.shown.Load().upstreams {
			if err := b.transport.Refresh(ctx, key); err != nil && ctx.Err() == nil {
				s.log.Debug("tls: no fresh session", "upstream", name, "error", err.Error())
			}
		}
	}
}

// echOf returns the ECHConfigList of a host's HTTPS record, if it is at hand: a
// connection does not wait for more than a warm lookup would take.
func (s *Sidecar) echOf(ctx context.Context, host, addr string) []byte {
	limited, cancel := context.WithTimeout(ctx, echWait)
	defer cancel()
	a, err := s.names.Lookup(limited, host)
	if err != nil {
		return nil
	}
	for _, service := range a.Services {
		if service.Priority == 0 || len(service.ECH) == 0 || !ownService(service, host) {
			continue
		}
		port := cmp.Or(int(service.Port), 443)
		if strings.HasSuffix(addr, ":"+strconv.Itoa(port)) {
			return service.ECH
		}
	}
	return nil
}

const echWait = 50 * time.Millisecond

// A tlsStatus is what status shows of TLS.
type tlsStatus struct {
	Roots    rootsStatus     `json:"roots"`
	Sessions []sessionStatus `json:"sessions"` // a thousand at most
	More     int             `json:"more_sessions,omitempty"`
}

type rootsStatus struct {
	Source       string `json:"source"`
	Certificates int    `json:"certificates,omitempty"`
	Error        string `json:"error,omitempty"`
}

// A sessionStatus is what is known of one kind of connection to one server.
type sessionStatus struct {
	Server    string `json:"server"` // host:port
	Protocols string `json:"protocols,omitempty"`
	QUIC      bool   `json:"quic,omitempty"`
	Identity  bool   `json:"client_certificate,omitempty"`
	Tickets   int    `json:"tickets"`
	Saved     int    `json:"saved,omitempty"` // in the file, for the next run
	Youngest  string `json:"youngest,omitempty"`
	Oldest    string `json:"oldest,omitempty"`
	Left      string `json:"left,omitempty"` // of the life of the one that lives longest
	Resumed   uint64 `json:"resumed"`
	Full      uint64 `json:"full"`
	Refused   uint64 `json:"refused"` // full although a ticket was offered
	Failed    uint64 `json:"failed"`  // failed with a ticket
}

const shownSessions = 1000

func (s *Sidecar) tlsStatus() tlsStatus {
	st := s.roots.State()
	out := tlsStatus{Roots: rootsStatus{Source: st.Source, Certificates: st.Certificates}, Sessions: []sessionStatus{}}
	if st.Err != nil {
		out.Roots.Error = st.Err.Error()
	}
	states := s.sessions.State()
	out.More = max(0, len(states)-shownSessions)
	for _, k := range states[:min(len(states), shownSessions)] {
		out.Sessions = append(out.Sessions, sessionStatus{
			net.JoinHostPort(k.Key.ServerName, k.Key.Port), k.Key.Protocols, k.Key.QUIC, k.Key.Client != "", k.Tickets, k.Parked,
			span(k.NewestAge), span(k.OldestAge), span(k.LongestLeft), k.Counts.Resumed, k.Counts.Full, k.Counts.Refused, k.Counts.Failed,
		})
	}
	return out
}

// flushSessions forgets those of a server, "" = of all, in the file too.
func (s *Sidecar) flushSessions(server string) int {
	n := s.sessions.Flush(server)
	s.saveSessions((*tlspool.Store).SaveSpare)
	return n
}

// rootsOf returns the roots for peers other than upstreams: the system's, as they are
// now, and those of a file.
func rootsOf(store *trust.Store, key, file string) (func() *x509.CertPool, error) {
	var pem []byte
	if file != "" {
		var err error
		if pem, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return trust.Roots(store, pem, false)
}
