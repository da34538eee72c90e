// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"
)

func TestOpenSSL(t *testing.T) {
	h := newHouse(t, nil)
	whole := chain(h.leaf, h.mid)
	for _, tt := range []struct {
		name  string
		args  []string
		check func(t *testing.T, r *Report)
	}{
		{"default", nil, func(t *testing.T, r *Report) {
			if !r.Verified() || r.Tickets.Count != 2 || *r.Tickets.Lifetime != 7200 || *r.Tickets.EarlyData != 0 || r.Tickets.Bytes < 100 || r.Handshakes.Share != 1 || r.Agreed.Retried {
				t.Errorf("%+v %+v %+v", r.Chain, r.Tickets, r.Handshakes)
			}
		}},
		{"four tickets", []string{"-num_tickets", "4"}, func(t *testing.T, r *Report) {
			if r.Tickets.Count != 4 {
				t.Errorf("%+v", r.Tickets)
			}
		}},
		{"early data", []string{"-max_early_data", "12345"}, func(t *testing.T, r *Report) {
			if r.Tickets.Count != 2 || r.Tickets.EarlyData == nil || *r.Tickets.EarlyData != 12345 {
				t.Errorf("%+v", r.Tickets)
			}
		}},
		{"AES-256", []string{"-ciphersuites", "TLS_AES_256_GCM_SHA384"}, twoTickets},
		{"ChaCha20", []string{"-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"}, twoTickets},
		{"no tickets", []string{"-num_tickets", "0"}, func(t *testing.T, r *Report) {
			if r.Tickets.Count != 0 || r.Handshakes.Tried != 0 || r.Handshakes.Resumed.Failed[NoTicket] != 3 || r.Handshakes.Full.Took.N != 3 {
				t.Errorf("%+v %+v", r.Tickets, r.Handshakes)
			}
		}},
		{"TLS 1.2 only", []string{"-tls1_2"}, func(t *testing.T, r *Report) {
			if r.Agreed.Version != "TLS 1.2" || r.Versions[0].Spoken || !r.Versions[1].Spoken || r.Versions[0].Failure.Kind != Refused {
				t.Errorf("%+v %+v", r.Agreed, r.Versions)
			}
			if r.Tickets.Count != 1 || *r.Tickets.Lifetime != 7200 || r.Tickets.EarlyData != nil || r.Handshakes.Share != 1 || r.Handshakes.Resumed.Took.N != 3 {
				t.Errorf("%+v %+v", r.Tickets, r.Handshakes)
			}
		}},
		{"TLS 1.2 without tickets", []string{"-tls1_2", "-no_ticket"}, func(t *testing.T, r *Report) {
			if r.Tickets.Count != 0 || r.Handshakes.Tried != 0 {
				t.Errorf("%+v %+v", r.Tickets, r.Handshakes)
			}
		}},
		{"TLS 1.3 only", []string{"-tls1_3"}, func(t *testing.T, r *Report) {
			if r.Agreed.Version != "TLS 1.3" || !r.Versions[0].Spoken || r.Versions[1].Spoken || r.Versions[1].Failure == nil {
				t.Errorf("%+v %+v", r.Agreed, r.Versions)
			}
		}},
		{"another group", []string{"-groups", "P-384"}, func(t *testing.T, r *Report) {
			if !r.Agreed.Retried || r.Agreed.Group != "CurveP384" {
				t.Errorf("%+v", r.Agreed)
			}
		}},
		{"one protocol", []string{"-alpn", "http/1.1"}, func(t *testing.T, r *Report) {
			if r.Agreed.Protocol != "http/1.1" || r.ALPN[1].Failure == nil || r.ALPN[1].Failure.Kind != Refused || r.ALPN[2].Chosen != "http/1.1" {
				t.Errorf("%+v", r.ALPN)
			}
		}},
		{"old versions", []string{"-tls1_1", "-cipher", "ALL:@SECLEVEL=0"}, func(t *testing.T, r *Report) {
			if r.Agreed == nil || r.Agreed.Version != "TLS 1.1" || !r.Versions[2].Spoken || len(r.Notes) == 0 {
				t.Errorf("%+v %+v %q", r.Failure, r.Versions, r.Notes)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for tickets
			r := run(t, to(openssl(t, whole, tt.args...), h.pool))
			if r.Failure != nil {
				t.Fatal(r.Failure)
			}
			tt.check(t, r)
		})
	}
}

func twoTickets(t *testing.T, r *Report) {
	if r.Tickets.Count != 2 || r.Tickets.Lifetime == nil || *r.Tickets.Lifetime != 7200 || r.Tickets.Bytes < 100 {
		t.Errorf("%s: %+v", r.Agreed.CipherSuite, r.Tickets)
	}
}

func TestRecordingSeesEveryTicket(t *testing.T) {
	h := newHouse(t, nil)
	p, err := New(to(openssl(t, chain(h.leaf, h.mid), "-num_tickets", "3"), h.pool))
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.meet(t.Context(), offer{tickets: 3, record: true})
	if err != nil || len(m.tickets) != 3 || len(m.sessions) != 3 {
		t.Errorf("%v, %d recorded, %d sessions, want 3", err, len(m.tickets), len(m.sessions))
	}
}

func TestOpenSSLWithoutIntermediate(t *testing.T) {
	h := newHouse(t, nil)
	r := run(t, to(openssl(t, chain(h.leaf)), h.pool))
	if r.Verified() || len(r.Chain.Problems) != 1 || r.Chain.Problems[0].Code != MissingIntermediate || r.Tickets.Count != 2 {
		t.Errorf("%+v %+v", r.Chain, r.Tickets)
	}
}

// answer makes an OCSP response about h's leaf.
func answer(t *testing.T, by *signer, about *signer, change func(*ocsp.Response)) []byte {
	t.Helper()
	now := time.Now()
	r := ocsp.Response{
		Status: ocsp.Good, SerialNumber: about.cert.SerialNumber, ThisUpdate: now.Add(-time.Hour), NextUpdate: now.Add(24 * time.Hour),
	}
	if change != nil {
		change(&r)
	}
	raw, err := ocsp.CreateResponse(by.cert, by.cert, r, by.key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestOpenSSLStaples(t *testing.T) {
	h := newHouse(t, nil)
	path := filepath.Join(t.TempDir(), "staple.der")
	write(t, path, answer(t, h.mid, h.leaf, nil))
	r := run(t, to(openssl(t, chain(h.leaf, h.mid), "-status_file", path), h.pool))
	if s := r.Staple; s.Status != "good" || s.Text != "" || s.Produced.IsZero() || s.NextUpdate.Before(time.Now()) || !r.Verified() {
		t.Errorf("%+v", s)
	}
}

func mustStapleToo(c *x509.Certificate) {
	c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}, Value: []byte{0x30, 3, 2, 1, 5}}}
}

func TestStaples(t *testing.T) {
	plain, strict := newHouse(t, nil), newHouse(t, mustStapleToo)
	now := time.Now()
	gone := func(r *ocsp.Response) { r.Status, r.RevokedAt = ocsp.Revoked, now.Add(-48*time.Hour) }
	stale := func(r *ocsp.Response) {
		r.ThisUpdate, r.NextUpdate = now.Add(-200*time.Hour), now.Add(-100*time.Hour)
	}
	// A responder of its own (RFC 6960 section 4.2.2.2), allowed or not.
	delegated := func(usage ...x509.ExtKeyUsage) []byte {
		by := issue(t, plain.mid, "responder", func(c *x509.Certificate) { c.ExtKeyUsage = usage })
		raw, err := ocsp.CreateResponse(plain.mid.cert, by.cert, ocsp.Response{
			Status: ocsp.Good, SerialNumber: plain.leaf.cert.SerialNumber, ThisUpdate: now.Add(-time.Hour), NextUpdate: now.Add(time.Hour), Certificate: by.cert,
		}, by.key)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	early := func(r *ocsp.Response) { r.ThisUpdate = now.Add(time.Hour) }
	for _, tt := range []struct {
		name    string
		house   *house
		staple  []byte
		status  string
		problem string
	}{
		{"absent", plain, nil, "absent", ""},
		{"good", plain, answer(t, plain.mid, plain.leaf, nil), "good", ""},
		{"revoked", plain, answer(t, plain.mid, plain.leaf, gone), "revoked", Revoked},
		{"stale", plain, answer(t, plain.mid, plain.leaf, stale), "stale", ""},
		{"from the future", plain, answer(t, plain.mid, plain.leaf, early), "future", ""},
		{"by a responder", plain, delegated(x509.ExtKeyUsageOCSPSigning), "good", ""},
		{"by one that may not", plain, delegated(x509.ExtKeyUsageServerAuth), "invalid", ""},
		{"signed by another", plain, answer(t, strict.mid, plain.leaf, nil), "invalid", ""},
		{"of another certificate", plain, answer(t, plain.mid, strict.leaf, nil), "invalid", ""},
		{"nonsense", plain, []byte("nonsense"), "invalid", ""},
		{"must-staple, good", strict, answer(t, strict.mid, strict.leaf, nil), "good", ""},
		{"must-staple, absent", strict, nil, "absent", MissingStaple},
		{"must-staple, stale", strict, answer(t, strict.mid, strict.leaf, stale), "stale", BadStaple},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for tickets
			c := chain(tt.house.leaf, tt.house.mid)
			c.OCSPStaple = tt.staple
			c.SignedCertificateTimestamps = [][]byte{[]byte("one"), []byte("two")}
			cfg := to(serve(t, &tls.Config{Certificates: []tls.Certificate{c}}), tt.house.pool)
			cfg.Handshakes = 1
			r := run(t, cfg)
			if r.Staple.Status != tt.status || r.Verified() != (tt.problem == "") || r.Chain.MustStaple != (tt.house == strict) || r.Chain.SCTs != 2 {
				t.Fatalf("%+v, chain %+v", r.Staple, r.Chain)
			}
			if tt.problem != "" && r.Chain.Problems[0].Code != tt.problem {
				t.Errorf("problems %+v, want %s", r.Chain.Problems, tt.problem)
			}
		})
	}
}

// A certificate's own list of promises is counted (RFC 6962 section 3.3).
func TestPromisesInTheCertificate(t *testing.T) {
	list := "\x00\x08\x00\x02ab\x00\x02cd"
	h := newHouse(t, func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: oidSCTs(), Value: append([]byte{4, byte(len(list))}, list...)}}
	})
	if n := promises(h.leaf.cert); n != 2 {
		t.Errorf("%d promises, want 2", n)
	}
	if n := promises(h.mid.cert); n != 0 {
		t.Errorf("%d promises, want none", n)
	}
}

func TestNginx(t *testing.T) {
	h := newHouse(t, nil)
	for _, tt := range []struct {
		name, settings string
		tickets        bool
	}{
		{"default", "", true},
		{"tickets off", "ssl_session_tickets off;", false},
		{"TLS 1.2", "ssl_protocols TLSv1.2;", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for tickets
			r := run(t, to(nginx(t, chain(h.leaf, h.mid), tt.settings), h.pool))
			if !r.Verified() || r.Tickets == nil || (r.Tickets.Count > 0) != tt.tickets {
				t.Fatalf("failure %v, chain %+v, tickets %+v", r.Failure, r.Chain, r.Tickets)
			}
			if tt.tickets && (r.Handshakes.Share != 1 || r.Handshakes.Tried != 3) {
				t.Errorf("%+v", r.Handshakes)
			}
			if !strings.Contains(r.Agreed.Version, "TLS 1.") || r.Agreed.Protocol != "h2" && r.Agreed.Protocol != "http/1.1" && r.Agreed.Protocol != "" {
				t.Errorf("%+v", r.Agreed)
			}
		})
	}
}
