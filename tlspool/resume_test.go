// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

var versions = []uint16{tls.VersionTLS12, tls.VersionTLS13}

// A watched server of Go's sees each ticket that is offered to it.
type watched struct {
	cfg *tls.Config

	mu   sync.Mutex // guards the fields below
	seen map[string]int
	bad  error // what looking at a ticket ends with, nil if it is good
}

func newWatched(cfg *tls.Config) *watched {
	w := &watched{cfg: cfg, seen: map[string]int{}}
	cfg.WrapSession = cfg.EncryptTicket
	cfg.UnwrapSession = func(ticket []byte, st tls.ConnectionState) (*tls.SessionState, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(ticket) > 0 {
			w.seen[string(ticket)]++
		}
		if w.bad != nil {
			return nil, w.bad
		}
		return cfg.DecryptTicket(ticket, st)
	}
	return w
}

func (w *watched) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad = err
}

func (w *watched) rotate() {
	var key [32]byte
	rand.Read(key[:]) // never fails
	w.cfg.SetSessionTicketKeys([][32]byte{key})
}

func TestAThousandReconnectsResume(t *testing.T) {
	const reconnects, rotation = 1000, 100
	p := ecPKI()
	w := newWatched(&tls.Config{Certificates: []tls.Certificate{p.cert(host)}})
	w.rotate()
	addr := serve(t, w.cfg)
	s := New(Config{})
	mustDial(t, s, hostKey, addr, p.client(), false)
	resumed, full, rotated := 0, 0, 0
	for i := 1; i <= reconnects; i++ {
		if i%rotation == 0 {
			w.rotate()
		}
		st, err := dial(t.Context(), s.Handshake(hostKey), addr, p.client())
		switch {
		case err != nil:
			t.Fatalf("reconnect %d: %v", i, err)
		case st.DidResume:
			resumed++
		case i%rotation == 0:
			rotated++
		default:
			full++
		}
	}
	t.Logf("%d resumed, %d full after a rotation, %d full otherwise", resumed, rotated, full)
	if rotated != reconnects/rotation || full*100 > reconnects-rotated {
		t.Errorf("%d full after a rotation, want %d; %d full otherwise, over 1 %%", rotated, reconnects/rotation, full)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) != reconnects {
		t.Errorf("the server saw %d tickets in %d reconnects", len(w.seen), reconnects)
	}
	for ticket, times := range w.seen {
		if times != 1 {
			t.Errorf("ticket %x was offered %d times", ticket[:8], times)
		}
	}
	c := s.State()[0].Counts
	if c.Resumed != uint64(resumed) || c.Refused != uint64(rotated) || c.Full != uint64(rotated+1) || c.Failed != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestTwoNamesOnOneAddressAndTicketKeyNeverShare(t *testing.T) {
	p := ecPKI()
	for _, version := range versions {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			addr := serve(t, &tls.Config{Certificates: []tls.Certificate{p.cert(host), p.cert("b.example")}, MaxVersion: version})
			s := New(Config{})
			for round := range 2 {
				for _, name := range []string{host, "b.example"} {
					cfg := p.client()
					cfg.ServerName = name
					st := mustDial(t, s, Key{ServerName: name, Port: "443"}, addr, cfg, round > 0)
					if err := st.PeerCertificates[0].VerifyHostname(name); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

func TestTwoClientCertificatesNeverShare(t *testing.T) {
	p := ecPKI()
	for _, version := range versions {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			var mu sync.Mutex
			var seen []string
			addr := serve(t, &tls.Config{
				Certificates: []tls.Certificate{p.cert(host)}, MaxVersion: version,
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: p.roots,
				VerifyConnection: func(st tls.ConnectionState) error {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, st.PeerCertificates[0].Subject.CommonName)
					return nil
				},
			})
			s := New(Config{})
			certs := map[string]tls.Certificate{"one": p.cert("one"), "two": p.cert("two")}
			for round := range 2 {
				for _, id := range []string{"one", "two"} {
					cfg := p.client()
					cfg.Certificates = []tls.Certificate{certs[id]}
					mustDial(t, s, Key{ServerName: host, Port: "443", Client: id}, addr, cfg, round > 0)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if want := []string{"one", "two", "one", "two"}; !slices.Equal(seen, want) {
				t.Errorf("the server saw %q, want %q", seen, want)
			}
		})
	}
}

// spoil changes the newest ticket of hostKey.
func spoil(t *testing.T, s *Store, change func(label, state []byte) (l, st []byte)) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	tickets := s.entries[hostKey].tickets
	newest := tickets[len(tickets)-1]
	label, state, err := newest.state.ResumptionState()
	must(t, err)
	b, err := state.Bytes()
	must(t, err)
	label, b = change(bytes.Clone(label), b)
	state, err = tls.ParseSessionState(b)
	must(t, err)
	newest.state, err = tls.NewResumptionState(label, state)
	must(t, err)
}

func TestADamagedTicketMakesAFullHandshake(t *testing.T) {
	p := ecPKI()
	for _, version := range versions {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			addr := serve(t, &tls.Config{Certificates: []tls.Certificate{p.cert(host)}, MaxVersion: version})
			s := New(Config{})
			mustDial(t, s, hostKey, addr, p.client(), false)
			spoil(t, s, func(label, state []byte) ([]byte, []byte) {
				label[len(label)/2] ^= 1
				return label, state
			})
			mustDial(t, s, hostKey, addr, p.client(), false)
			mustDial(t, s, hostKey, addr, p.client(), true)
			if c := s.State()[0].Counts; c.Refused != 1 || c.Failed != 0 {
				t.Errorf("counts %+v", c)
			}
		})
	}
}

func TestATicketThatFailsTheHandshakeIsFollowedByAFullOne(t *testing.T) {
	p := ecPKI()
	for _, version := range versions {
		for _, how := range []string{"the server breaks off", "wrong secret"} {
			t.Run(tls.VersionName(version)+" "+how, func(t *testing.T) {
				w := newWatched(&tls.Config{Certificates: []tls.Certificate{p.cert(host)}, MaxVersion: version})
				addr := serve(t, w.cfg)
				s := New(Config{})
				mustDial(t, s, hostKey, addr, p.client(), false)
				if how == "wrong secret" {
					spoil(t, s, func(label, state []byte) ([]byte, []byte) {
						state[14] ^= 1 // version, type, suite, created, length: then the secret
						return label, state
					})
				} else {
					w.fail(errors.New("the server's ticket store is down"))
				}
				h := s.Handshake(hostKey)
				if _, err := dial(t.Context(), h, addr, p.client()); err == nil || !h.Offered() {
					t.Fatalf("handshake: %v, offered %v; want a failure with a ticket", err, h.Offered())
				}
				if version == tls.VersionTLS12 {
					w.fail(nil) // Go's server asks for the ticket even if it is empty
				}
				h = s.Handshake(hostKey)
				st, err := dial(t.Context(), h, addr, p.client())
				if err != nil || st.DidResume || h.Offered() {
					t.Fatalf("next: %v, resumed %v, offered %v", err, st.DidResume, h.Offered())
				}
				w.fail(nil)
				mustDial(t, s, hostKey, addr, p.client(), true)
				if c := s.State()[0].Counts; c.Failed != 1 {
					t.Errorf("counts %+v", c)
				}
			})
		}
	}
}

// A session of a chain that the roots of now do not know is not resumed, even if
// the owner has left the Key as it was.
func TestASessionOfAnUnknownRootIsNotResumed(t *testing.T) {
	p, other := ecPKI(), newPKI(newECDSA)
	cert := p.cert(host)
	addr := serve(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }})
	s := New(Config{})
	mustDial(t, s, hostKey, addr, p.client(), false)
	_, err := dial(t.Context(), s.Handshake(hostKey), addr, other.client())
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
		t.Errorf("handshake: %v", err)
	}
}

func TestTheEndOfTheVerdictMakesAFullHandshake(t *testing.T) {
	p := ecPKI()
	addr := serve(t, &tls.Config{Certificates: []tls.Certificate{p.cert(host)}})
	now := time.Now()
	s := New(Config{Now: func() time.Time { return now }})
	h := s.Handshake(hostKey)
	cfg := p.client()
	cfg.VerifyConnection = func(tls.ConnectionState) error {
		h.Verified(now.Add(time.Hour))
		return nil
	}
	if _, err := dial(t.Context(), h, addr, cfg); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour - time.Second)
	mustDial(t, s, hostKey, addr, p.client(), true)
	now = now.Add(time.Second)
	mustDial(t, s, hostKey, addr, p.client(), false)
}

func TestACancelledRealHandshakeDoesNotMakeTheNextOneFull(t *testing.T) {
	p := ecPKI()
	addr := serve(t, &tls.Config{Certificates: []tls.Certificate{p.cert(host)}})
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "old") // below the real ones
	mustDial(t, s, hostKey, addr, p.client(), false)       // "old" is refused
	mute, err := net.Listen("tcp", "127.0.0.1:0")          // takes connections and says nothing
	must(t, err)
	defer mute.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := s.Handshake(hostKey)
	cfg := p.client()
	cfg.Time = func() time.Time { // asked for when the ticket has been taken
		if h.Offered() {
			cancel()
		}
		return time.Now()
	}
	if _, err := dial(ctx, h, mute.Addr().String(), cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("handshake: %v", err)
	}
	if st := s.State()[0]; st.Tickets != 0 || st.FullNext != 0 || st.Counts.Failed != 0 {
		t.Errorf("state %+v", st)
	}
}
