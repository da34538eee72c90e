// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"
)

// The pace of the streams: 20 tokens a second.
const tokenGap = 50 * time.Millisecond

// Pauses of the model, if a stream is asked to have them: about every five
// seconds, half a second to four.
const (
	pauseEvery = 5 * time.Second
	pauseMin   = 500 * time.Millisecond
	pauseMax   = 4 * time.Second
)

// A server streams tokens that say when they were sent.
type server struct {
	epoch time.Time // of the stamps
	plain *http.Server
	tls   *http.Server
	ca    []byte // PEM
	cert  tls.Certificate
}

func newServer(epoch time.Time, addrs ...net.IP) (*server, error) {
	s := &server{epoch: epoch}
	if err := s.makeCertificate(addrs); err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /stream", s.stream)
	mux.HandleFunc("GET /ws", s.socket)
	mux.HandleFunc("GET /bulk", bulk)
	quiet := log.New(io.Discard, "", 0) // connections end in every way here
	s.plain = &http.Server{Handler: mux, ErrorLog: quiet, ReadHeaderTimeout: 30 * time.Second}
	s.tls = &http.Server{Handler: mux, ErrorLog: quiet, ReadHeaderTimeout: 30 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{s.cert}}}
	return s, nil
}

// serve serves until ctx ends, cutting what still runs.
func (s *server) serve(ctx context.Context, plain, secure []net.Listener) error {
	base := func(net.Listener) context.Context { return ctx }
	s.plain.BaseContext, s.tls.BaseContext = base, base
	var group errgroup.Group
	for _, l := range plain {
		group.Go(func() error { return s.plain.Serve(l) })
	}
	for _, l := range secure {
		group.Go(func() error { return s.tls.ServeTLS(l, "", "") })
	}
	stop := context.AfterFunc(ctx, func() { _ = errors.Join(s.plain.Close(), s.tls.Close()) })
	defer stop()
	if err := group.Wait(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *server) makeCertificate(addrs []net.IP) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "warmwire lab"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: addrs,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	s.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	s.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return nil
}

// appendFrame appends the n-th frame, stamped now.
func (s *server) appendFrame(b []byte, n int) []byte {
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(time.Since(s.epoch)), 10)
	return append(b, " and some bytes in place of a token with all that comes around it"...)
}

// A pace says when the next token comes.
type pace struct {
	pauses *mrand.Rand // nil: none
	next   time.Time   // of the next pause

	thinks    *mrand.Rand // nil: it does not
	low, high time.Duration
}

// newPace reads the query: pauses=SEED, or think=SEED,LOW,HIGH for a silence
// between any two tokens.
func newPace(r *http.Request) *pace {
	p := &pace{}
	if q := strings.Split(r.URL.Query().Get("think"), ","); len(q) == 3 {
		seed, err := strconv.ParseUint(q[0], 10, 64)
		low, err2 := time.ParseDuration(q[1])
		high, err3 := time.ParseDuration(q[2])
		if errors.Join(err, err2, err3) == nil && low < high {
			p.thinks, p.low, p.high = mrand.New(mrand.NewPCG(seed, 2)), low, high
		}
		return p
	}
	if seed, err := strconv.ParseUint(r.URL.Query().Get("pauses"), 10, 64); err == nil {
		p.pauses = mrand.New(mrand.NewPCG(seed, 1))
		p.plan()
	}
	return p
}

func (p *pace) plan() { p.next = time.Now().Add(uniform(p.pauses, pauseEvery/2, pauseEvery*3/2)) }

// wait returns when the next token is due or ctx has ended, which it tells.
func (p *pace) wait(ctx context.Context) bool {
	d := tokenGap
	if p.thinks != nil {
		d = uniform(p.thinks, p.low, p.high)
	}
	if p.pauses != nil && time.Now().After(p.next) {
		d = uniform(p.pauses, pauseMin, pauseMax)
		defer p.plan()
	}
	return sleep(ctx, d) == nil
}

// stream is an event stream without end; with tokens=N it ends after N.
func (s *server) stream(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	limit, _ := strconv.Atoi(r.URL.Query().Get("tokens"))
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	p := newPace(r)
	var b []byte
	for n := 0; limit == 0 || n < limit; n++ {
		b = append(s.appendFrame(append(b[:0], "data: "...), n), "\n\n"...)
		if _, err := w.Write(b); err != nil {
			return
		}
		if err := flush.Flush(); err != nil {
			return
		}
		if !p.wait(r.Context()) {
			return
		}
	}
}

// bulk sends as much as the path takes.
func bulk(w http.ResponseWriter, _ *http.Request) {
	chunk := make([]byte, 32<<10)
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// socket streams frames as messages; with quiet=1 it sends one for each that comes.
func (s *server) socket(w http.ResponseWriter, r *http.Request) {
	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	c, err := up.Upgrade(w, r, nil)
	if err != nil {
		return // it has answered
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // no more of http.Server's concern
	asked := make(chan struct{}, 16)
	go func() { // gorilla answers pings while it reads
		defer cancel()
		for {
			if _, _, err := c.ReadMessage(); err != nil {
				return
			}
			select {
			case asked <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	quiet := r.URL.Query().Get("quiet") != ""
	p := newPace(r)
	for n := 0; ; n++ {
		if quiet {
			select {
			case <-asked:
			case <-ctx.Done():
				return
			}
		}
		if err := c.WriteMessage(websocket.TextMessage, s.appendFrame(nil, n)); err != nil {
			return
		}
		if !quiet {
			select { // what the client says is of no matter to a stream
			case <-asked:
			default:
			}
			if !p.wait(ctx) {
				return
			}
		}
	}
}

// uniform draws from low to high.
func uniform(r *mrand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// sleep waits for d or for the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
