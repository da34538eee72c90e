// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	_ "golang.org/x/crypto/x509roots/fallback" // a scratch image has no roots: these serve where the system has none

	"github.com/quic-go/quic-go"

	"github.com/warmwire/warmwire/heartbeat"
	"github.com/warmwire/warmwire/transport/h2"
)

// Config describes the way to one upstream, or to any host if the caller puts
// the authority in the request. The zero value is the default.
type Config struct {
	Protocols      []string // "h2", "http/1.1", "h3" beside one of them; nil = the first two
	TLSHandshake   time.Duration
	RequestWrite   time.Duration // an upload of which nothing is taken; 0 = none
	ResponseHeader time.Duration // sent request to final head; 0 = none
	ExtraRoots     []byte        // PEM, added to the system's
	ClientCert     *tls.Certificate
	MinVersion     uint16 // 0 = TLS 1.2

	Class     h2.Class // of its requests
	Pool      Pool
	Heartbeat heartbeat.Config // when a silent connection is probed and left

	// Distrust is told that the host of addr, host:port, showed a certificate for
	// another name: its address may be a network login page's. If it returns true,
	// other addresses are known and the connection is tried once more; nil = never.
	Distrust func(ctx context.Context, addr string) bool
	// OnPeer is told which address of addr, host:port, proved to be the right one.
	OnPeer func(addr string, at netip.AddrPort)

	HTTP3   *HTTP3 // nil: TCP only
	QlogDir string // where connections over QUIC are traced; "" = nowhere

	OnHandshake func(resumed bool, err error)
	OnConn      func(delta int, protocol string)
	OnVerdict   func(verdict string) // a new one on a connection: alive, thinking, doubtful, path_down, dead_flow
}

// Pool bounds the connections to one origin. The zero value is the default.
type Pool struct {
	Warm             int           // connections kept ready, see Transport.Keep
	WarmFor          time.Duration // after the last request; 0 = not for requests alone
	MaxConnections   int           // of HTTP/2; 0 = 8
	MaxH1Connections int           // of HTTP/1.1; 0 = 1000
	MaxStreams       int           // requests at once on one; 0 = what the peer allows, 100 at most
	IdleTimeout      time.Duration // of one that serves nothing and is not kept warm; 0 = learned, 90 s at most
	QueueTimeout     time.Duration // of a request that finds all of them full; 0 = 10 s
}

// Limits of a pool that nothing sets.
const (
	defaultHandshake = 5 * time.Second
	idleTimeout      = 90 * time.Second
	queueLimit       = 1000 // requests that wait for a connection
)

// A Transport is the way to one upstream.
type Transport struct {
	cfg     Config
	tls     *tls.Config
	dialRaw DialFunc
	tcp     []string // of the protocols, those over TCP

	quicSessions tls.ClientSessionCache
	quicTokens   quic.TokenStore

	mu      sync.Mutex // guards origins and closed
	closed  bool
	origins map[string]*origin
}

// New returns a Transport that opens its connections with dial.
func New(dial DialFunc, cfg Config) (*Transport, error) {
	if err := cfg.Heartbeat.Validate(); err != nil {
		return nil, err
	}
	cfg.TLSHandshake = cmp.Or(cfg.TLSHandshake, defaultHandshake)
	if len(cfg.Protocols) == 0 {
		cfg.Protocols = []string{"h2", "http/1.1"}
	}
	t := &Transport{cfg: cfg, dialRaw: dial, origins: make(map[string]*origin)}
	for _, p := range cfg.Protocols {
		switch p {
		case "h2", "http/1.1":
			t.tcp = append(t.tcp, p)
		case "h3":
		default:
			return nil, fmt.Errorf("transport: unknown protocol %q", p)
		}
	}
	if len(t.tcp) == 0 {
		return nil, errors.New("transport: h3 needs h2 or http/1.1 beside it: a network may drop UDP")
	}
	t.newQUICState()
	t.tls = &tls.Config{MinVersion: cmp.Or(cfg.MinVersion, tls.VersionTLS12), ClientSessionCache: tls.NewLRUClientSessionCache(64)}
	if len(cfg.ExtraRoots) > 0 {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM(cfg.ExtraRoots) {
			return nil, errors.New("transport: the extra roots hold no PEM certificate")
		}
		t.tls.RootCAs = roots
	}
	if cfg.ClientCert != nil {
		t.tls.Certificates = []tls.Certificate{*cfg.ClientCert}
	}
	return t, nil
}
