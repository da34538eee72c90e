// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/tlspool/trust"
)

// serveTLS answers each connection with a handshake and a byte.
func serveTLS(t *testing.T, cfg *tls.Config) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = c.Read(make([]byte, 100))
			_, _ = c.Write([]byte("x"))
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-served })
	return ln.Addr().String()
}

const publicName = "public.example.net"

func TestECH(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	systemOf(t, p.root)
	front := issue(t, p.ca, "front", forNames(publicName))
	impostor := issue(t, other.ca, "impostor", forNames(publicName))
	config, key := testenv.ECHConfig(t, 1, publicName)
	old, _ := testenv.ECHConfig(t, 2, publicName)
	server := func(outer, above *holder) string {
		return serveTLS(t, &tls.Config{
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				c := certificate(outer, above)
				if hello.ServerName == host {
					c = certificate(p.leaf, p.ca)
				}
				return &c, nil
			},
			EncryptedClientHelloKeys: []tls.EncryptedClientHelloKey{{Config: config, PrivateKey: key.Bytes(), SendAsRetry: true}},
		})
	}
	with := func(list []byte) func(*tls.Config) {
		return func(cfg *tls.Config) {
			cfg.EncryptedClientHelloConfigList, cfg.MinVersion = testenv.ECHList(list), tls.VersionTLS13
			// What must not be left in force.
			cfg.EncryptedClientHelloRejectionVerify = func(tls.ConnectionState) error { return nil }
		}
	}
	good := server(front, p.ca)

	cs, err := handshake(t, good, newVerifier(t, trust.Config{}), with(config))
	if err != nil || !cs.ECHAccepted {
		t.Errorf("accepted: got %t %v", cs.ECHAccepted, err)
	}
	_, err = handshake(t, good, newVerifier(t, trust.Config{CA: pemOf(other.root), Only: true}), with(config))
	if e := asError(t, err); e == nil || e.Reason != trust.UnknownRoot {
		t.Errorf("accepted, another root: got %v", err)
	}

	// Rejected by whoever has the public name: the new keys may be used.
	var rejected *tls.ECHRejectionError
	_, err = handshake(t, good, newVerifier(t, trust.Config{}), with(old))
	if !errors.As(err, &rejected) || len(rejected.RetryConfigList) == 0 {
		t.Errorf("rejected: got %v, want the server's new keys", err)
	}
	// Rejected by somebody else: they may not.
	v := newVerifier(t, trust.Config{})
	_, err = handshake(t, server(impostor, other.ca), v, with(old))
	if err == nil || errors.As(err, &rejected) {
		t.Fatalf("rejected by an impostor: got %v", err)
	}
	if e := asError(t, v.Explain(publicName, err)); e.Reason != trust.UnknownRoot || e.ServerName != publicName {
		t.Errorf("rejected by an impostor: got %v, want it explained", e)
	}
	// And for roots that the operator added.
	if _, err = handshake(t, server(impostor, other.ca), newVerifier(t, trust.Config{CA: pemOf(other.root)}), with(old)); !errors.As(err, &rejected) {
		t.Errorf("rejected, root added: got %v", err)
	}
}

// Why Apply does not use crypto/tls's hook for rejected ECH. If this fails, Go has
// begun to hand the certificates to it, and Apply could verify there as well.
func TestGoGivesTheHookForRejectedECHNoCertificates(t *testing.T) {
	p := newPKI(t)
	old, _ := testenv.ECHConfig(t, 2, publicName)
	addr := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{certificate(p.leaf, p.ca)}})
	shown := -1
	_, err := dial(t, addr, &tls.Config{
		ServerName: host, MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: testenv.ECHList(old),
		EncryptedClientHelloRejectionVerify: func(cs tls.ConnectionState) error {
			shown = len(cs.PeerCertificates)
			return errors.New("no")
		},
	})
	if err == nil || shown != 0 {
		t.Errorf("got %v with %d certificates, want an error and none", err, shown)
	}
}
