// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// An upstream that offers HTTP/3 is reached over it, through the whole product,
// and the app sees the same answer.
func TestHTTP3Upstream(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := udp.LocalAddr().(*net.UDPAddr).Port
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Alt-Svc", fmt.Sprintf(`h3=":%d"; ma=60`, port))
		b, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s", r.Proto, b)
	})
	tcp := httptest.NewUnstartedServer(handler)
	tcp.EnableHTTP2, tcp.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	tcp.StartTLS()
	t.Cleanup(tcp.Close)
	quic := &http3.Server{Handler: handler, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: tcp.TLS.Certificates})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = quic.Serve(udp)
	}()
	t.Cleanup(func() {
		_ = quic.Close()
		_ = udp.Close()
		<-served
	})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tcp.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, "", fmt.Sprintf("upstreams:\n  up: {url: '%s', protocols: [h2, h3], tls: {ca_file: %s}, pool: {warm: 0, idle_timeout: 1ms}}\n", tcp.URL, ca))
	deadline := time.Now().Add(patience)
	for {
		resp, err := http.Post("http://"+r.addr+"/up/v1/x", "application/json", strings.NewReader(`{"a":1}`))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || !strings.HasSuffix(string(b), ` {"a":1}`) {
			t.Fatalf("%d %s", resp.StatusCode, b)
		}
		if strings.HasPrefix(string(b), "HTTP/3.0") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still over %s", b)
		}
	}
}
