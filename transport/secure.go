// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/warmwire/warmwire/tlspool"
	"github.com/warmwire/warmwire/tlspool/trust"
)

// A Handshake is one that was made or has failed, for Config.OnHandshake.
type Handshake struct {
	How  string // full, resumed, 0-rtt or failed
	Took time.Duration
}

// An opening is the way to one new connection over TCP. What may be tried once more
// is tried once: nothing of a request has been sent yet.
type opening struct {
	o          *origin
	h1Only     bool
	distrusted bool   // other addresses were asked for
	refresh    bool   // it is for tickets only
	offered    bool   // the last attempt offered an earlier session
	full       bool   // a ticket made the handshake fail
	asked      bool   // for what the HTTPS record says of ECH
	ech        []byte // ECHConfigList to use; nil = none
	refused    bool   // ECH was refused, or could not be used
	anonymous  bool   // the server has asked for a certificate of ours, and there is none
}

// protocols are what it offers in ALPN.
func (op *opening) protocols() []string {
	if op.h1Only {
		return []string{"http/1.1"}
	}
	return op.o.t.tcp
}

// again says whether another connection may do better than the one that failed with
// err, and prepares it.
func (op *opening) again(ctx context.Context, err error) bool {
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
	case len(op.ech) > 0 && !op.refused && unusableECH(err):
		op.refused, op.ech = true, nil // nothing was sent
		return true
	case op.offered && !op.full && !timedOut(err) && !ofToday(err):
		op.full = true
		return true
	case errors.As(err, &wrong) && wrong.Kind == "upstream_tls_wrong_name" && len(op.ech) == 0 && !op.distrusted && op.o.t.cfg.Distrust != nil:
		op.distrusted = true
		return op.o.t.cfg.Distrust(ctx, op.o.addr)
	}
	return false
}

// unusableECH says whether crypto/tls could make nothing of an ECHConfigList: unknown
// configurations are to be ignored (RFC 9849 §6). It has no type for that.
func unusableECH(err error) bool {
	return strings.Contains(err.Error(), "ECHConfigList") || strings.Contains(err.Error(), "EncryptedClientHelloConfigList")
}

func timedOut(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Expired
}

// ofToday says whether err is about a certificate that the server showed just now,
// whatever session was offered: another connection would meet it again.
func ofToday(err error) bool {
	var untrusted *trust.Error
	return errors.As(err, &untrusted) && !untrusted.Resumed
}

// handshake makes TLS of a connection, within the limit.
func (op *opening) handshake(ctx context.Context, c net.Conn) (*tls.Conn, error) {
	o := op.o
	limited, cancel := context.WithTimeout(ctx, o.t.cfg.TLSHandshake)
	defer cancel()
	if o.t.cfg.ECH != nil && !op.asked {
		op.asked, op.ech = true, o.t.cfg.ECH(limited, o.addr)
	}
	cfg, session := o.tlsConfig(op)
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	tc := tls.Client(c, cfg)
	begun := time.Now()
	err := tc.HandshakeContext(limited)
	state := tc.ConnectionState()
	if trace != nil && trace.TLSHandshakeDone != nil {
		trace.TLSHandshakeDone(state, err)
	}
	op.offered = session.Offered()
	settle(session, state, err, context.Cause(ctx))
	if ctx.Err() == nil { // one that is not wanted any more has not failed
		o.t.handshaken(state.DidResume, false, time.Since(begun), err)
	}
	if err == nil {
		return tc, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if alert := remoteAlert(err); alert != "" && op.anonymous {
		return nil, &Error{In: "tls", Kind: kindAnonymous,
			Err: fmt.Errorf("TLS handshake with %s: %w; it asks for a client certificate: see tls.client_cert", o.addr, err)}
	}
	failed := tlsError(o.addr, o.t.cfg.Trust.Explain(o.host, err), o.t.cfg.TLSHandshake)
	if len(op.ech) > 0 {
		failed.Err = fmt.Errorf("%w (with the ECH offer of its HTTPS record: tls.ech)", failed.Err)
	}
	return nil, failed
}

// tlsConfig is what a new connection to the origin shakes hands with; op nil: over QUIC.
func (o *origin) tlsConfig(op *opening) (*tls.Config, *tlspool.Handshake) {
	cfg := o.t.tls.Clone()
	cfg.ServerName = o.host
	if op != nil {
		cfg.NextProtos = op.protocols()
		if len(op.ech) > 0 {
			cfg.EncryptedClientHelloConfigList, cfg.MinVersion = op.ech, tls.VersionTLS13
		}
	}
	key := o.sessionKey(cfg.NextProtos, cfg.MinVersion)
	key.QUIC = op == nil
	if c := o.t.cfg.ClientCert; c != nil {
		key.Client = c.Apply(cfg)
	} else if op != nil {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			op.anonymous = true
			return new(tls.Certificate), nil // none: many servers only ask
		}
	}
	var session *tlspool.Handshake
	switch store := o.t.cfg.Sessions; {
	case op != nil && op.full:
		session = store.Full(key)
	case op != nil && op.refresh:
		session = store.Refresh(key)
	default:
		session = store.Handshake(key)
	}
	cfg.ClientSessionCache = session
	// What a resumed connection rests on is verified again by Trust, which remembers
	// it: its verdict's short time does not limit the tickets.
	o.t.cfg.Trust.Apply(cfg, o.host, nil)
	return cfg, session
}

// sessionKey says which sessions a handshake over TCP may use, but for our identity.
func (o *origin) sessionKey(protocols []string, minVersion uint16) tlspool.Key {
	_, port, _ := net.SplitHostPort(o.addr)
	return tlspool.Key{ServerName: o.host, Port: port, Protocols: strings.Join(protocols, ","),
		Trust: o.t.cfg.Trust.ID(), MinVersion: minVersion}
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
	case ofToday(err):
		session.Done(false) // the server has refused the ticket, and shown a certificate
	default:
		session.Failed(err)
	}
}

// handshaken tells of a handshake.
func (t *Transport) handshaken(resumed, early bool, took time.Duration, err error) {
	if t.cfg.OnHandshake == nil {
		return
	}
	h := Handshake{How: "full", Took: took}
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
// closes it: those it has will soon be too old. It does nothing if a connection that
// this Transport opens now would not use k, or the origin is not kept ready.
func (t *Transport) Refresh(ctx context.Context, k tlspool.Key) error {
	for _, o := range t.each() {
		op := &opening{o: o, h1Only: k.Protocols == "http/1.1", refresh: true}
		now := o.sessionKey(op.protocols(), t.tls.MinVersion) // a ticket over QUIC comes with the next connection over QUIC
		if c := t.cfg.ClientCert; c != nil {
			now.Client = c.ID()
		}
		if !o.secure || now != k || o.pool.State().Keep == 0 {
			continue
		}
		s, nc, _, err := op.run(ctx)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = s.Close() })
		_ = nc.SetReadDeadline(time.Now().Add(ticketWait))
		_, _ = nc.Read(make([]byte, 1024)) // tickets come with the first bytes, if any do
		stop()
		_ = nc.Close()
		_ = s.Close()
	}
	return nil
}

// Recheck renews the connections if the roots or our certificate are not those they
// were opened with: what is in flight goes on, new requests do not join it.
func (t *Transport) Recheck() {
	id := t.cfg.Trust.ID()
	if c := t.cfg.ClientCert; c != nil {
		id += " " + c.ID()
	}
	if old := t.identity.Swap(&id); old != nil && *old != id {
		t.Renew()
	}
}
