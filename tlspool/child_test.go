// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"crypto/x509"

	"github.com/quic-go/quic-go"
)

// Variables of the children of tests.
const (
	childVariable = "TLSPOOL_TEST_CHILD"
	fileVariable  = "TLSPOOL_TEST_FILE"
	rootVariable  = "TLSPOOL_TEST_ROOT"
	addrVariable  = "TLSPOOL_TEST_ADDR"
)

// children are what this binary does when a test starts it again.
var children = map[string]func() int{
	"diskFull": diskFull,
	"tcp":      func() int { return restarted(childTCP) },
	"quic":     func() int { return restarted(childQUIC) },
	"bench":    childBench,
}

// restarted is a process that loads the file, connects, prints how that went
// and saves the file.
func restarted(connect func(h *Handshake, cfg *tls.Config) (string, error)) int {
	said, err := func() (string, error) {
		s := New(Config{})
		f := File{Path: os.Getenv(fileVariable)}
		if err := s.Load(f); err != nil {
			return "", err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(os.Getenv(rootVariable)))
		said, err := connect(s.Handshake(hostKey), &tls.Config{ServerName: host, RootCAs: roots})
		if err != nil {
			return "", err
		}
		return said, s.Save(f)
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(said)
	return 0
}

func childTCP(h *Handshake, cfg *tls.Config) (string, error) {
	st, err := dial(context.Background(), h, os.Getenv(addrVariable), cfg)
	return fmt.Sprint("resumed ", st.DidResume), err
}

func childQUIC(h *Handshake, cfg *tls.Config) (string, error) {
	st, err := dialQUIC(context.Background(), h, os.Getenv(addrVariable), cfg)
	return fmt.Sprint("resumed ", st.TLS.DidResume, " 0-RTT ", st.Used0RTT), err
}

func TestANewProcessResumesOnItsFirstHandshake(t *testing.T) {
	p := ecPKI()
	root := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.root.Raw}))
	start := func(t *testing.T, child, addr string, wants ...string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "sessions")
		for i, want := range wants {
			if got := runChild(t, child, fileVariable+"="+path, rootVariable+"="+root, addrVariable+"="+addr); got != want {
				t.Errorf("process %d: %s, want %s", i+1, got, want)
			}
		}
	}
	for _, version := range versions {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			addr := serve(t, &tls.Config{Certificates: []tls.Certificate{p.cert(host)}, MaxVersion: version})
			start(t, "tcp", addr, "resumed false", "resumed true", "resumed true")
		})
	}
	t.Run("QUIC", func(t *testing.T) {
		addr := serveQUIC(t, p.cert(host), &quic.Config{Allow0RTT: true})
		start(t, "quic", addr, "resumed false 0-RTT false", "resumed true 0-RTT true", "resumed true 0-RTT true")
	})
}
