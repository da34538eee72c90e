// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
)

// A Server is one mock API. See the package comment.
type Server struct {
	cfg     Config
	auth    *authority
	stats   *stats
	store   *store
	mux     *http.ServeMux
	ctx     context.Context // ends with Run; ends streams that outlive their connection
	cancel  context.CancelFunc
	handled *gate
	places  chan struct{} // as many as Config.Capacity; nil = no bound

	mu     sync.Mutex // guards the fields below
	plain  net.Listener
	secure net.Listener
}

// New returns a Server that serves nothing until Run is called.
func New(cfg Config) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	auth, err := newAuthority(cfg.Names)
	if err != nil {
		return nil, fmt.Errorf("mockapi: %w", err)
	}
	s := &Server{cfg: cfg, auth: auth, stats: newStats(cfg.OnRequest), store: newStore(), mux: http.NewServeMux(), handled: newGate()}
	if cfg.Capacity > 0 {
		s.places = make(chan struct{}, cfg.Capacity)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.routes()
	return s, nil
}

// Listen opens the addresses, so that URL and TLSURL are known before Run.
func (s *Server) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.plain == nil {
		if s.plain, err = listen(s.cfg.Listener, s.cfg.Addr); err != nil {
			return err
		}
	}
	if s.secure == nil {
		if s.secure, err = listen(s.cfg.TLSListener, s.cfg.TLSAddr); err != nil {
			return err
		}
	}
	return nil
}

func listen(given net.Listener, addr string) (net.Listener, error) {
	if given != nil {
		return given, nil
	}
	if addr == "off" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("mockapi: listen: %w", err)
	}
	return l, nil
}

// Run serves until ctx ends, and then returns nil once every request has
// ended. It opens the addresses if Listen has not. Call it once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	var (
		servers []*http.Server
		serving sync.WaitGroup
		broken  = make(chan error, 2)
	)
	serve := func(l net.Listener, cfg *tls.Config, protocols *http.Protocols) {
		if l == nil {
			return
		}
		srv := s.server(protocols)
		servers = append(servers, srv)
		serving.Go(func() {
			if err := srv.Serve(&tapListener{Listener: l, tls: cfg, stats: s.stats}); !errors.Is(err, http.ErrServerClosed) {
				broken <- fmt.Errorf("mockapi: serve: %w", err)
			}
		})
	}
	var both, secure http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	// TLS ends in the listener, so that frames can be put in between; to
	// net/http both addresses look plain.
	secure.SetHTTP1(slices.Contains(s.cfg.ALPN, "http/1.1"))
	secure.SetUnencryptedHTTP2(slices.Contains(s.cfg.ALPN, "h2"))
	serve(s.plain, nil, &both)
	serve(s.secure, s.tlsConfig(), &secure)

	var err error
	select {
	case <-ctx.Done():
	case err = <-broken:
	}
	s.cancel()
	for _, srv := range servers {
		err = firstError(err, srv.Close())
	}
	serving.Wait()
	s.handled.closeAndWait()
	return err
}

func (s *Server) server(protocols *http.Protocols) *http.Server {
	return &http.Server{
		Handler:     s.Handler(),
		Protocols:   protocols,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: s.cfg.MaxStreams},
		ErrorLog:    log.New(io.Discard, "", 0), // a failed handshake is the client's to report
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

func (s *Server) tlsConfig() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{s.auth.leaf},
		NextProtos:   s.cfg.ALPN,
		MinVersion:   tls.VersionTLS12,
		MaxVersion:   s.cfg.MaxVersion,
	}
}

// URL is the plain address as http://host:port, or "" before Listen.
func (s *Server) URL() string { return s.url("http://", func() net.Listener { return s.plain }) }

// TLSURL is the TLS address as https://host:port, or "" before Listen.
func (s *Server) TLSURL() string { return s.url("https://", func() net.Listener { return s.secure }) }

func (s *Server) url(scheme string, l func() net.Listener) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l() == nil {
		return ""
	}
	return scheme + l().Addr().String()
}

// CAPEM is the authority's certificate.
func (s *Server) CAPEM() []byte { return slices.Clone(s.auth.caPEM) }

// CertPool holds the authority's certificate.
func (s *Server) CertPool() *x509.CertPool { return s.auth.pool.Clone() }

// Stats returns the counters as of now.
func (s *Server) Stats() Stats { return s.stats.snapshot() }

// gate counts what is inside and can be closed.
type gate struct {
	mu     sync.Mutex
	inside int
	closed bool
	empty  chan struct{} // closed when closed and nothing is inside
}

func newGate() *gate { return &gate{empty: make(chan struct{})} }

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.closed && g.inside == 0 {
		close(g.empty)
	}
}

func (g *gate) closeAndWait() {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		if g.inside == 0 {
			close(g.empty)
		}
	}
	g.mu.Unlock()
	<-g.empty
}
