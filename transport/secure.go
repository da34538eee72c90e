// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/warmwire/warmwire/tlspool"
)

// A Handshake is one that was made or has failed, for Config.OnHandshake.
type Handshake struct {
	How  string // full, resumed, 0-rtt or failed
	Took time.Duration
	Err  error // nil unless it failed
}

// An opening is the way to one new connection over TCP. What may be tried once more
// is tried once: nothing of a request has been sent yet.
type opening struct {
	o          *origin
	h1Only     bool
	distrusted bool   // other addresses were asked for
	refresh    bool   // it is for tickets only
	full       bool   // a ticket made the handshake fail
	asked      bool   // for what the HTTPS record says of ECH
	ech        []byte // ECHConfigList to use; nil = none
	refused    bool   // the server has refused ECH
}

// again says whether another connection may do better than the one that failed with
// err, and prepares it.
func (op *opening) again(ctx context.Context, err error, offered bool) bool {
	if ctx.Err() != nil {
		return false
	}
	var refused *tls.ECHRejectionError
	var wrong *Error
	switch {
	case errors.As(err, &refused):
		if op.refused {
			return false
		}
		op.refused, op.ech = true, refused.RetryConfigList // none: it wants no ECH any more
		return true
	case offered && !op.full && !timedOut(err):
		op.full = true
		return true
	case errors.As(err, &wrong) && wrong.Kind == "upstream_tls_wrong_name" && !op.distrusted && op.o.t.cfg.Distrust != nil:
		op.distrusted = true
		return op.o.t.cfg.Distrust(ctx, op.o.addr)
	}
	return false
}

func timedOut(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Expired
}

// handshake makes TLS of a connection, within the limit. offered says whether an
// earlier session was offered to the server.
func (op *opening) handshake(ctx context.Context, c net.Conn) (tc *tls.Conn, offered bool, err error) {
	o := op.o
	protocols := o.t.tcp
	if op.h1Only {
		protocols = []string{"http/1.1"}
	}
	cfg, session := o.tlsConfig(protocols, false, op.refresh)
	if o.t.cfg.ECH != nil && !op.asked {
		op.asked, op.ech = true, o.t.cfg.ECH(ctx, o.addr)
	}
	if len(op.ech) > 0 {
		cfg.EncryptedClientHelloConfigList, cfg.MinVersion = op.ech, tls.VersionTLS13
	}
	limited, cancel := context.WithTimeout(ctx, o.t.cfg.TLSHandshake)
	defer cancel()
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	tc = tls.Client(c, cfg)
	begun := time.Now()
	err = tc.HandshakeContext(limited)
	state := tc.ConnectionState()
	if trace != nil && trace.TLSHandshakeDone != nil {
		trace.TLSHandshakeDone(state, err)
	}
	settle(session, state, err, context.Cause(ctx))
	if ctx.Err() == nil { // one that is not wanted any more has not failed
		o.t.handshaken(state.DidResume, false, time.Since(begun), err)
	}
	if err == nil {
		return tc, session.Offered(), nil
	}
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	return nil, session.Offered(), tlsError(o.addr, o.t.cfg.Trust.Explain(o.host, err), o.t.cfg.TLSHandshake)
}

// tlsConfig is what a new connection to the origin shakes hands with.
func (o *origin) tlsConfig(protocols []string, quic, refresh bool) (*tls.Config, *tlspool.Handshake) {
	cfg := o.t.tls.Clone()
	cfg.ServerName, cfg.NextProtos = o.host, protocols
	key := tlspool.Key{ServerName: o.host, Protocols: strings.Join(protocols, ","), QUIC: quic, Trust: o.t.cfg.Trust.ID()}
	_, key.Port, _ = net.SplitHostPort(o.addr)
	if c := o.t.cfg.ClientCert; c != nil {
		key.Client = c.Apply(cfg)
	}
	key.MinVersion = cfg.MinVersion
	session := o.t.cfg.Sessions.Handshake(key)
	if refresh {
		session = o.t.cfg.Sessions.Refresh(key)
	}
	cfg.ClientSessionCache = session
	// What a resumed connection rests on is verified again by Trust, which remembers
	// it: its verdict's short time does not limit the tickets.
	o.t.cfg.Trust.Apply(cfg, o.host, nil)
	return cfg, session
}

// settle tells the session's store how its handshake ended. cause is why it was
// cancelled, if it was.
func settle(session *tlspool.Handshake, state tls.ConnectionState, err, cause error) {
	switch {
	case err == nil:
		session.Done(state.DidResume)
		if len(state.PeerCertificates) > 0 {
			session.Verified(state.PeerCertificates[0].NotAfter)
		}
	case cause != nil:
		session.Failed(context.Canceled) // says nothing about the server
	default:
		session.Failed(err)
	}
}

// handshaken tells of a handshake.
func (t *Transport) handshaken(resumed, early bool, took time.Duration, err error) {
	if t.cfg.OnHandshake == nil {
		return
	}
	h := Handshake{How: "full", Took: took, Err: err}
	switch {
	case err != nil:
		h.How = "failed"
	case early:
		h.How = "0-rtt"
	case resumed:
		h.How = "resumed"
	}
	t.cfg.OnHandshake(h)
}

// ticketWait is how long a new connection is read for the ticket it was made for.
const ticketWait = time.Second

// Refresh opens a connection for the tickets of an origin that is kept ready, and
// closes it: those it has will soon be too old. It returns nil if the origin is not
// of this Transport or is not kept ready.
func (t *Transport) Refresh(ctx context.Context, k tlspool.Key) error {
	if k.QUIC || k.Trust != t.cfg.Trust.ID() {
		return nil // a ticket over QUIC comes with the next connection over QUIC
	}
	for _, o := range t.each() {
		if !o.secure || o.host != k.ServerName || o.addr != net.JoinHostPort(k.ServerName, k.Port) || o.pool.State().Keep == 0 {
			continue
		}
		s, nc, _, err := (&opening{o: o, h1Only: k.Protocols == "http/1.1", refresh: true}).run(ctx)
		if err != nil {
			return err
		}
		_ = nc.SetReadDeadline(time.Now().Add(ticketWait))
		_, _ = nc.Read(make([]byte, 1024)) // tickets come with the first bytes, if any do
		_ = nc.Close()
		_ = s.Close()
	}
	return nil
}
