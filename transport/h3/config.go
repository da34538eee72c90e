// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/transport/semantics"
)

// Config is how a connection is opened and behaves. TLS is needed, the rest has
// defaults.
type Config struct {
	// TLS names the server (ServerName), holds the roots, and, for resumption and
	// 0-RTT, a ClientSessionCache. ALPN and the least version are set here.
	TLS *tls.Config
	// Tokens holds the address tokens of servers; nil = none are kept.
	Tokens quic.TokenStore
	// EarlyData lets requests that are safe and have no body (GET, HEAD, OPTIONS)
	// go out in 0-RTT, when a session allows it. All others wait for the handshake.
	EarlyData bool

	HandshakeTimeout time.Duration // for the server's first sign, and for the whole handshake; 0 = 5 s
	IdleTimeout      time.Duration // without a packet from the server; 0 = 5 min; the server's own limit counts as well

	StreamWindow    int // bytes that a stream may hold for a slow app; 0 = 64 KiB
	MaxStreamWindow int // how far that grows for an app that keeps up; 0 = 1 MiB, at least StreamWindow
	MaxStreams      int // requests at once, if the server allows them; 0 = 100
	// Budget is charged with what streams may hold beyond the first 16 KiB each, which
	// whoever admits a request has counted. The library opens windows by itself, so a
	// budget without room does not make them smaller. nil = nobody counts.
	Budget *bufferctl.Budget

	// Priority tells the server what is urgent, by class: the priority field, and
	// PRIORITY_UPDATE.
	Priority bool
	// Class says what a request is; nil = what [WithClass] put in its context.
	Class func(*http.Request) semantics.Class

	// QlogDir is where a trace of the connection is written (qlog), nowhere if
	// empty. It has packets and frames, and never a field or a byte of a body.
	QlogDir string
	trace   *trace // nil without QlogDir

	// OnChange is called after Available, InFlight or Err may have changed, with
	// no lock held, by any goroutine. It must not block. nil = nobody is told.
	OnChange func()
}

// Limits that no setting changes.
const (
	maxHeadBytes   = 1 << 20               // of an answer: all its 1xx, its head, and again its trailers
	maxInterim     = 64                    // 1xx before the final answer; a guess
	maxUseless     = 1 << 10               // frames in a row on a stream that bring nothing; a guess
	maxSettings    = 8 << 10               // bytes of the peer's SETTINGS; a guess
	maxUniStreams  = 8                     // the server's at once: control, two of QPACK, and some that are refused
	assumedStreams = 100                   // until the server's limit is met: RFC 9114 §6.1 recommends no less
	maxWindow      = 1 << 30               // of a stream
	firstWindow    = 16 << 10              // of each stream's window, counted when its request is admitted
	leastPacket    = 1200                  // RFC 9000 §14: what every path of QUIC carries; more is found out
	maxAckDelay    = 25 * time.Millisecond // RFC 9000 §18.2, the default
)

// alpn is HTTP/3's name (RFC 9114 §3.1).
const alpn = "h3"

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 5*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Minute)
	c.StreamWindow = cmp.Or(c.StreamWindow, 64<<10)
	c.MaxStreamWindow = max(cmp.Or(c.MaxStreamWindow, 1<<20), c.StreamWindow)
	c.MaxStreams = cmp.Or(c.MaxStreams, assumedStreams)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	switch {
	case c.TLS == nil:
		return errors.New("h3: a connection needs a TLS configuration")
	case c.StreamWindow < 0 || c.StreamWindow > maxWindow || c.MaxStreamWindow < 0 || c.MaxStreamWindow > maxWindow:
		return fmt.Errorf("h3: stream window %d or its limit %d is not between 1 and %d", c.StreamWindow, c.MaxStreamWindow, maxWindow)
	case c.MaxStreams < 0 || c.HandshakeTimeout < 0 || c.IdleTimeout < 0:
		return fmt.Errorf("h3: negative stream limit %d or timeout %v, %v", c.MaxStreams, c.HandshakeTimeout, c.IdleTimeout)
	}
	return nil
}

// tlsConfig is TLS as QUIC and HTTP/3 need it.
func (c *Config) tlsConfig() *tls.Config {
	t := c.TLS.Clone()
	t.NextProtos = []string{alpn}
	t.MinVersion = tls.VersionTLS13 // RFC 9001 §4.2
	return t
}

// quicConfig is what the library is told.
func (c *Config) quicConfig() *quic.Config {
	// The connection's window is what all streams may hold together, so that
	// readers that stop never slow another; a stream's own bounds its memory.
	window := uint64(max(c.MaxStreams, assumedStreams)) * uint64(c.MaxStreamWindow)
	q := &quic.Config{
		Versions:                       []quic.Version{quic.Version1},
		HandshakeIdleTimeout:           c.HandshakeTimeout,
		MaxIdleTimeout:                 c.IdleTimeout,
		TokenStore:                     c.Tokens,
		InitialStreamReceiveWindow:     uint64(c.StreamWindow),
		MaxStreamReceiveWindow:         uint64(c.MaxStreamWindow),
		InitialConnectionReceiveWindow: window,
		MaxConnectionReceiveWindow:     window,
		MaxIncomingStreams:             -1, // RFC 9114 §6.1: a server opens none
		MaxIncomingUniStreams:          maxUniStreams,
		InitialPacketSize:              leastPacket,
	}
	if c.trace != nil {
		q.Tracer = c.trace.tracer
	}
	return q
}
