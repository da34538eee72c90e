// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/heartbeat"
	"github.com/warmwire/warmwire/tlspool"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport/flight"
	"github.com/warmwire/warmwire/transport/semantics"
)

// Config describes the way to one upstream, or to any host if the caller puts
// the authority in the request. The zero value is the default.
type Config struct {
	Protocols      []string // "h2", "http/1.1", "h3" beside one of them; nil = the first two
	TLSHandshake   time.Duration
	RequestWrite   time.Duration // an upload of which nothing is taken; 0 = none
	ResponseHeader time.Duration // sent request to final head; 0 = none

	Trust      *trust.Verifier   // whom a certificate is checked against; nil = the system's roots
	ClientCert *trust.ClientCert // ours; nil = none
	MinVersion uint16            // 0 = TLS 1.2
	Sessions   *tlspool.Store    // to resume, may be shared; nil = an own one
	// ECH returns the ECHConfigList (RFC 9849) for addr, host:port, nil if there is none;
	// nil = it is not used. It must not take long.
	ECH func(ctx context.Context, addr string) []byte

	StreamLimit int               // bytes that an answer may hold for a slow app; 0 = 1 MiB
	Budget      *bufferctl.Budget // of all streams, may be shared; nil = no bound

	Class     semantics.Class                     // of its requests
	ClassOf   func(*http.Request) semantics.Class // of each; nil = Class
	Pool      Pool
	Heartbeat heartbeat.Config // at first, see SetHeartbeat: when a silent connection is probed and left

	// Distrust is told that the host of addr, host:port, showed a certificate for
	// another name: its address may be a network login page's. If it returns true,
	// other addresses are known and the connection is tried once more; nil = never.
	Distrust func(ctx context.Context, addr string) bool
	// OnPeer is told which address of addr, host:port, proved to be the right one.
	OnPeer func(addr string, at netip.AddrPort)

	WebSocketHTTP2 bool // WebSockets as streams of HTTP/2 connections that are there and offer it (RFC 8441)

	HTTP3   *HTTP3 // nil: TCP only
	QlogDir string // where connections over QUIC are traced; "" = nowhere

	Flights *flight.Recorder // of its connections over TCP, may be shared; nil = none

	OnHandshake func(Handshake)
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

	// Learned is how long the server of an origin (scheme://host:port) keeps idle
	// connections, as an earlier process learned it, 0 if that is not known; nil = never.
	Learned func(origin string) time.Duration
}

// Limits of a pool that nothing sets.
const (
	defaultHandshake = 5 * time.Second
	idleTimeout      = 90 * time.Second
	queueLimit       = 1000 // requests that wait for a connection
	streamLimit      = 1 << 20
	streamStart      = 64 << 10 // of a stream's window
)

// A Transport is the way to one upstream.
type Transport struct {
	cfg     Config
	tls     *tls.Config
	dialRaw DialFunc
	tcp     []string // of the protocols, those over TCP

	quicTokens quic.TokenStore
	heartbeat  atomic.Pointer[heartbeat.Config]
	identity   atomic.Pointer[string] // roots and our certificate at the last Recheck

	mu      sync.Mutex // guards the fields below
	closed  bool
	retired bool
	origins map[string]*origin
}

// New returns a Transport that opens its connections with dial.
func New(dial DialFunc, cfg Config) (*Transport, error) {
	if err := cfg.Heartbeat.Validate(); err != nil {
		return nil, err
	}
	cfg.TLSHandshake = cmp.Or(cfg.TLSHandshake, defaultHandshake)
	cfg.StreamLimit = cmp.Or(cfg.StreamLimit, streamLimit)
	if cfg.StreamLimit < 0 {
		return nil, fmt.Errorf("transport: negative stream limit %d", cfg.StreamLimit)
	}
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
	t.quicTokens = quic.NewLRUTokenStore(64, 4)
	t.heartbeat.Store(&cfg.Heartbeat)
	t.tls = &tls.Config{MinVersion: cmp.Or(cfg.MinVersion, tls.VersionTLS12)}
	if t.cfg.Trust == nil {
		var err error
		if t.cfg.Trust, err = trust.New(trust.Config{}); err != nil {
			return nil, err
		}
	}
	if t.cfg.Sessions == nil {
		t.cfg.Sessions = tlspool.New(tlspool.Config{})
	}
	t.Recheck()
	return t, nil
}

// SetHeartbeat changes when silent connections are probed: of those that are open, from
// their next silence on.
func (t *Transport) SetHeartbeat(cfg heartbeat.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	t.heartbeat.Store(&cfg)
	return nil
}
