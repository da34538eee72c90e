// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"time"
)

// A Prober makes handshakes with one server.
type Prober struct {
	cfg    Config
	verify bool          // Go verifies within the handshake, as a client does
	groups []tls.CurveID // of offers that say none; nil means Go's own
}

// New returns a Prober that verifies certificates as any client does. It
// connects to nobody before it is used.
func New(cfg Config) (*Prober, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Prober{cfg: cfg.WithDefaults(), verify: true}, nil
}

// An offer is one handshake as a client begins it.
type offer struct {
	groups   []tls.CurveID // nil means the Prober's
	alpn     []string      // nil means those of the configuration
	noALPN   bool
	min, max uint16                  // 0 means those of the configuration, and none
	session  *tls.ClientSessionState // nil asks for a full handshake
	tickets  int                     // waits for so many after the handshake, a short while
	record   bool                    // what the server says of its tickets is wanted
}

// classic are the groups of a ClientHello that fits into one segment: of them only
// the first one's key share is sent, of 32 bytes.
func classic() []tls.CurveID {
	return []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521}
}

// A meeting is one handshake as it went.
type meeting struct {
	connect, took time.Duration
	hello         int // bytes of the ClientHello with its record header
	at            string
	state         tls.ConnectionState
	sessions      []*tls.ClientSessionState
	asked         bool // for a client certificate
	withheld      bool // the session was not offered
	tickets       []ticket
	after         error // what the server said of a handshake that was over for us
}

// meet connects and shakes hands. Its errors are of type *Failure.
func (p *Prober) meet(ctx context.Context, o offer) (*meeting, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	m := &meeting{}
	start := time.Now()
	raw, err := p.cfg.Dial(ctx)
	m.connect = time.Since(start)
	if err != nil {
		return m, dialFailure(err)
	}
	defer func() { _ = raw.Close() }() // what it carried has been judged by then
	m.at = raw.RemoteAddr().String()
	wire := &tap{Conn: raw}
	store := &sessions{offered: o.session}
	config := p.clientConfig(o, m, store)
	if o.record {
		wire.keep = &recording{}
		defer wire.keep.forget()
		config.KeyLogWriter = wire.keep
	}
	conn := tls.Client(wire, config)
	begun := time.Now()
	err = conn.HandshakeContext(ctx)
	m.took, m.hello = time.Since(begun), wire.hello
	m.state, m.withheld = conn.ConnectionState(), store.withheld
	if err != nil {
		return m, handshakeFailure(err, m.asked, p.cfg)
	}
	if o.tickets > 0 {
		m.after = store.wait(ctx, conn, raw, o.tickets, m.connect+ticketWait)
	}
	m.sessions = store.got
	if o.record {
		m.tickets = wire.keep.tickets(m.state)
	}
	return m, nil
}

func (p *Prober) clientConfig(o offer, m *meeting, store *sessions) *tls.Config {
	c := &tls.Config{
		ServerName: strings.TrimSuffix(p.cfg.Host, "."), RootCAs: p.cfg.Roots, NextProtos: p.cfg.ALPN,
		MinVersion: p.cfg.MinVersion, MaxVersion: o.max, CurvePreferences: o.groups, ClientSessionCache: store,
		// An unverified handshake ends with itself: see the package's doc.
		InsecureSkipVerify: !p.verify,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m.asked = true
			if p.cfg.ClientCert != nil {
				return p.cfg.ClientCert, nil
			}
			return &tls.Certificate{}, nil // none, and the server decides
		},
	}
	if o.groups == nil {
		c.CurvePreferences = p.groups
	}
	if o.min != 0 {
		c.MinVersion = o.min
	}
	if o.alpn != nil || o.noALPN {
		c.NextProtos = o.alpn
	}
	return c
}

// A tap counts the bytes that are written before the first read: the ClientHello.
type tap struct {
	net.Conn
	hello int
	heard bool
	keep  *recording // may be nil
}

func (t *tap) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	if !t.heard {
		t.hello += n
	}
	return n, err
}

func (t *tap) Read(b []byte) (int, error) {
	t.heard = true
	n, err := t.Conn.Read(b)
	if t.keep != nil && len(t.keep.heard) < maxListen {
		t.keep.heard = append(t.keep.heard, b[:n]...)
	}
	return n, err
}

// sessions is the cache of one connection: it offers one session and keeps those
// that come. crypto/tls calls it from Handshake and Read only, which do not
// overlap here.
type sessions struct {
	offered *tls.ClientSessionState
	got     []*tls.ClientSessionState
	enough  int
	stop    func() // ends the read that waits

	withheld bool // crypto/tls found the offered one unfit: its certificate has expired
}

func (s *sessions) Get(string) (*tls.ClientSessionState, bool) { return s.offered, s.offered != nil }

func (s *sessions) Put(_ string, cs *tls.ClientSessionState) {
	if cs == nil {
		s.withheld = true
	}
	if cs == nil || len(s.got) == maxTickets {
		return
	}
	s.got = append(s.got, cs)
	if s.stop != nil && len(s.got) >= s.enough {
		s.stop()
	}
}

// wait reads until there are enough tickets or the time is over, since Go hands
// them out only while it reads. What else the server says is thrown away; its
// error is what the server thinks of the handshake.
func (s *sessions) wait(ctx context.Context, conn *tls.Conn, raw net.Conn, enough int, limit time.Duration) error {
	if len(s.got) >= enough {
		return nil // TLS 1.2 sends them within the handshake
	}
	if err := raw.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	s.enough, s.stop = enough, func() { _ = raw.SetReadDeadline(time.Unix(1, 0)) }
	defer context.AfterFunc(ctx, s.stop)()
	buf := make([]byte, 4<<10)
	for heard := 0; heard < maxListen; {
		n, err := conn.Read(buf)
		heard += n
		var ne net.Error
		switch {
		case errors.As(err, &ne) && ne.Timeout():
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// groupName names the key exchange.
func groupName(s tls.ConnectionState) string {
	switch {
	case s.CurveID != 0:
		return s.CurveID.String()
	case s.HandshakeComplete && s.Version < tls.VersionTLS13:
		return "RSA"
	}
	return ""
}
