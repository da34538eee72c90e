// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/mockapi"
)

// patience bounds every wait of the harness; a healthy run needs none of it.
const patience = 30 * time.Second

// An upstream is mockapi behind a gate. It has one TLS address for each API, so
// that a host and port names one upstream, and a plain address that no
// configuration mentions.
type upstream struct {
	tls    map[string]string // API -> https://localhost:port
	listed map[string]string // API -> https://openai.test:port; the same, by a name that only Warmwire can find
	plain  string            // http://localhost:port
	caPEM  []byte

	mu   sync.Mutex
	runs map[string]*run // guarded by mu; by the key that the client sends
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	mock, err := mockapi.New(mockapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{tls: map[string]string{}, listed: map[string]string{}, runs: map[string]*run{}}
	var cert tls.Certificate
	u.caPEM, cert = newCertificate(t)
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	both.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:   u.gated(mock.Handler()),
		Protocols: &both,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	serve := func(f func(net.Listener) error) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		serving.Go(func() {
			if err := f(l); !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("upstream: %v", err)
			}
		})
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return "localhost:" + port
	}
	for _, api := range []string{"openai", "anthropic", "gemini"} {
		u.tls[api] = "https://" + serve(func(l net.Listener) error { return server.ServeTLS(l, "", "") })
		u.listed[api] = strings.Replace(u.tls[api], "localhost", listedName(api), 1)
	}
	u.plain = "http://" + serve(server.Serve)
	return u
}

// listedName is the name of an API's host by which it may be intercepted. They differ,
// as an upstream is known by its host.
func listedName(api string) string { return api + ".test" }

// newCertificate makes an authority and a certificate for all names of the upstream.
func newCertificate(t *testing.T) (caPEM []byte, leaf tls.Certificate) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "client matrix"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 2),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	parent, err := x509.ParseCertificate(caDER)
	must(err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost", listedName("openai"), listedName("anthropic"), listedName("gemini")},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, parent, leafKey.Public(), caKey)
	must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
		tls.Certificate{Certificate: [][]byte{der}, PrivateKey: leafKey}
}

// A run is one answer to one client. After the first token it holds everything
// back until the client says that it has received something: a way in between
// that waits for more than it was given never gets it.
type run struct {
	first    chan struct{} // closed by the harness when the client has received something
	mu       sync.Mutex    // a WebSocket's answer and its pongs are written by two
	token    bool          // a token has been written; guarded by mu, like the fields below
	sent     []byte
	protocol string
	calls    int
	late     bool
}

// tokens is how the first token of a stream looks in each API.
var tokens = regexp.MustCompile(`"content":"[^"]|text_delta|"text":"[^"]|text\.delta`)

// begin prepares the answer for the client that will send key.
func (u *upstream) begin(key string) *run {
	r := &run{first: make(chan struct{})}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.runs[key] = r
	return r
}

func (u *upstream) run(key string) *run {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.runs[key]
}

func (u *upstream) gated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := u.run(keyOf(req))
		if r == nil {
			http.Error(w, "the client did not send the key it was given", http.StatusUnauthorized)
			return
		}
		r.mu.Lock()
		r.protocol = req.Proto
		r.calls++
		r.mu.Unlock()
		next.ServeHTTP(&gatedWriter{w, req.Context(), r}, req)
	})
}

// keyOf is the client's key, which each API carries in a place of its own.
func keyOf(req *http.Request) string {
	const bearer = "Bearer "
	if a := req.Header.Get("Authorization"); len(a) > len(bearer) {
		return a[len(bearer):]
	}
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if key := req.Header.Get(name); key != "" {
			return key
		}
	}
	for _, p := range websocket.Subprotocols(req) { // OpenAI's way for browsers
		if key, ok := strings.CutPrefix(p, "openai-insecure-api-key."); ok {
			return key
		}
	}
	return req.URL.Query().Get("key") // Gemini's live sessions
}

// pass writes p with write, and before that waits at the gate if it is closed.
func (r *run) pass(ctx context.Context, p []byte, write func([]byte) (int, error)) (int, error) {
	r.mu.Lock()
	held := r.token
	r.mu.Unlock()
	if held {
		late := time.NewTimer(patience / 2)
		defer late.Stop()
		select {
		case <-r.first:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-late.C:
			r.mu.Lock()
			r.late = true
			r.mu.Unlock()
		}
	}
	n, err := write(p)
	r.mu.Lock()
	r.sent = append(r.sent, p[:n]...)
	r.token = r.token || tokens.Match(p)
	r.mu.Unlock()
	return n, err
}

// body is what has been written so far.
func (r *run) body() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.sent)
}

// A gatedWriter passes everything that is written through the gate of a run.
type gatedWriter struct {
	http.ResponseWriter
	ctx context.Context
	run *run
}

func (w *gatedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *gatedWriter) Write(p []byte) (int, error) {
	return w.run.pass(w.ctx, p, w.ResponseWriter.Write)
}

// Hijack keeps the gate for WebSockets.
func (w *gatedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	gated := &gatedConn{conn, w.run}
	rw.Writer.Reset(gated)
	return gated, rw, nil
}

type gatedConn struct {
	net.Conn
	run *run
}

func (c *gatedConn) Write(p []byte) (int, error) {
	return c.run.pass(context.Background(), p, c.Conn.Write)
}
