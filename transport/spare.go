// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"net"
	"net/url"
	"time"

	"github.com/warmwire/warmwire/transport/dial"
	"github.com/warmwire/warmwire/transport/h2"
)

// ErrNoSpare says that an origin has no connections that can be asked for a sign of
// life without a request.
var ErrNoSpare = errors.New("transport: the origin does not speak HTTP/2")

// A Spare is a connection to an origin that serves nobody: left silent for longer and
// longer, it shows how long the path keeps such connections. Nothing is sent on it
// but what [Spare.Ping] sends; the kernel's keepalive is off. It is safe for concurrent
// use.
type Spare struct {
	conn *h2.Conn
	raw  *socket
	gone chan struct{}
}

// Spare opens one, over HTTP/2.
func (t *Transport) Spare(ctx context.Context, u *url.URL) (*Spare, error) {
	o, err := t.origin(u)
	if err != nil {
		return nil, err
	}
	raw, nc, protocol, err := o.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	if protocol != "h2" {
		_ = nc.Close()
		_ = raw.Close()
		return nil, ErrNoSpare
	}
	dial.Quiet(raw)
	s := &Spare{raw: raw, gone: make(chan struct{})}
	changed := make(chan struct{}, 1)
	s.conn, err = h2.New(nc, h2.Config{OnChange: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		_ = nc.Close()
		_ = raw.Close()
		return nil, &Error{In: "tls", Kind: "upstream_protocol_error", Err: err}
	}
	o.watching.Go(func() {
		defer close(s.gone)
		for s.conn.Err() == nil {
			select {
			case <-changed:
			case <-o.ctx.Done():
				s.conn.Shutdown()
			}
		}
		_ = s.conn.Close()
	})
	return s, nil
}

// Ping measures a round trip.
func (s *Spare) Ping(ctx context.Context) (time.Duration, error) { return s.conn.Ping(ctx) }

// Heard is when the peer last sent a byte.
func (s *Spare) Heard() time.Time { return s.conn.LastReceived() }

// NetConn is the connection, to ask its kernel.
func (s *Spare) NetConn() net.Conn { return s.raw }

// Gone is closed when the connection has ended.
func (s *Spare) Gone() <-chan struct{} { return s.gone }

// InOrder says of one that has ended whether the peer has closed it, as servers do with
// connections that serve nothing, with GOAWAY or a FIN.
func (s *Spare) InOrder() bool {
	var e *Error
	return errors.As(s.conn.Err(), &e) && e.Kind == "upstream_closed"
}

// Close ends the connection.
func (s *Spare) Close() {
	s.conn.Shutdown()
	<-s.gone
}
