// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmwire/warmwire/transport/h3"
	"github.com/warmwire/warmwire/transport/h3/altsvc"
	"github.com/warmwire/warmwire/transport/pool"
)

const (
	// quicHeadStart is how long TCP is held back where HTTP/3 is offered: half of
	// what is noticed, so that a network that drops UDP costs no more. A guess.
	quicHeadStart = 100 * time.Millisecond
	// quicStagger is between two addresses, as RFC 8305 §5 has it for TCP.
	quicStagger = 250 * time.Millisecond
	quicGrace   = 2 * quicStagger // for QUIC when TCP has failed
	quicAddrs   = 2               // of each origin: one of each family, or two
)

// HTTP3 is what the upstreams of a process share for HTTP/3. All functions are
// safe for concurrent use.
type HTTP3 struct {
	Endpoint *h3.Endpoint
	Offers   *altsvc.Memory
	// Lookup returns the addresses of a host, and the port at which its HTTPS
	// record (RFC 9460) offers HTTP/3, 0 if it does not, for how long.
	Lookup  func(ctx context.Context, host string) (addrs []netip.Addr, port uint16, ttl time.Duration, err error)
	Allowed func(netip.AddrPort) error // asked before an address is dialled; nil = all are
	Direct  func(addr string) bool     // false: host:port is behind a parent proxy, so over TCP only; nil = all are
}

// advise says whether HTTP/3 is to be tried for a new connection.
func (o *origin) advise(ctx context.Context, h1Only bool) (altsvc.Advice, altsvc.Service) {
	shared := o.t.cfg.HTTP3
	if shared == nil || h1Only || !o.secure || !slices.Contains(o.t.cfg.Protocols, "h3") || shared.Direct != nil && !shared.Direct(o.addr) {
		return altsvc.TCP, altsvc.Service{}
	}
	if o.races.Load() >= int32(cmp.Or(o.t.cfg.Pool.MaxConnections, 8)) {
		return altsvc.TCP, altsvc.Service{}
	}
	// The record of the bare name is that of port 443 (RFC 9460 §9.1).
	if _, err := netip.ParseAddr(o.host); err != nil && strings.HasSuffix(o.addr, ":443") {
		limited, cancel := context.WithTimeout(ctx, quicHeadStart) // the lookup itself goes on, for TCP
		defer cancel()
		if _, port, ttl, err := shared.Lookup(limited, o.host); err == nil && port != 0 {
			shared.Offers.Record(time.Now(), o.key, "", port, ttl)
		}
	}
	return shared.Offers.Ask(time.Now(), o.key)
}

// learnOffer takes what an answer says of alternatives (RFC 7838).
func (o *origin) learnOffer(resp *http.Response) {
	lines := resp.Header["Alt-Svc"]
	if lines == nil || !o.secure || o.t.cfg.HTTP3 == nil {
		return
	}
	age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 31)
	if err != nil {
		age = 0
	}
	// One that is not valid offers nothing, and is no reason to fail.
	_ = o.t.cfg.HTTP3.Offers.Said(time.Now(), o.key, lines, time.Duration(age)*time.Second)
}

// opened is what came of one way of a race.
type opened struct {
	conn pool.Conn
	info pool.Info
	err  error
	quic bool
}

// race opens HTTP/3 and, a little later, TCP; what is there first serves. An
// attempt over QUIC that loses goes on to its end, because its end says whether
// UDP passes here.
func (o *origin) race(ctx context.Context, at altsvc.Service, changed func()) (pool.Conn, pool.Info, error) {
	results := make(chan opened, 2)
	o.races.Add(1)
	o.watching.Go(func() {
		defer o.races.Add(-1)
		conn, info, err := o.openQUIC(o.ctx, at, changed)
		results <- opened{conn, info, err, true}
	})
	tcp := func() {
		o.watching.Go(func() {
			conn, info, err := o.openTCP(ctx, false, changed)
			results <- opened{conn, info, err, false}
		})
	}
	start := time.NewTimer(quicHeadStart)
	defer start.Stop()
	started, left := false, 2
	var failed error
	var grace <-chan time.Time // TCP has failed: QUIC's time-out is not waited for
	for {
		select {
		case <-grace:
			o.watching.Go(func() { o.loser(<-results) })
			return nil, pool.Info{}, failed
		case <-start.C:
			if !started {
				started = true
				tcp()
			}
		case <-ctx.Done():
			if !started {
				left--
			}
			for range left {
				o.watching.Go(func() { o.loser(<-results) })
			}
			return nil, pool.Info{}, context.Cause(ctx)
		case r := <-results:
			left--
			switch {
			case r.err == nil:
				if !started {
					left--
				}
				if left > 0 {
					o.watching.Go(func() { o.loser(<-results) })
				}
				if failed != nil && !r.quic {
					o.t.cfg.HTTP3.Offers.Failed(time.Now(), o.key)
				}
				return r.conn, r.info, nil
			case !started:
				failed, started = r.err, true
				tcp()
			case left == 0:
				if !r.quic || failed == nil {
					failed = r.err
				}
				return nil, pool.Info{}, failed
			default:
				failed = r.err
				if !r.quic {
					t := time.NewTimer(quicGrace)
					defer t.Stop()
					grace = t.C
				}
			}
		}
	}
}

// loser ends the other way of a race, whose result came too late.
func (o *origin) loser(r opened) {
	switch {
	case r.err == nil:
		r.conn.Shutdown()
	case r.quic && o.ctx.Err() == nil:
		o.t.cfg.HTTP3.Offers.Failed(time.Now(), o.key)
	}
}

// try finds out in the background whether HTTP/3 works again.
func (o *origin) try(at altsvc.Service) {
	o.watching.Go(func() {
		conn, _, err := o.openQUIC(o.ctx, at, func() {})
		switch {
		case err == nil:
			o.t.cfg.HTTP3.Offers.Worked(time.Now(), o.key)
			conn.Shutdown()
		case o.ctx.Err() == nil:
			o.t.cfg.HTTP3.Offers.Failed(time.Now(), o.key)
		}
	})
}

// openQUIC opens a connection over QUIC to where HTTP/3 is offered, which must
// show the origin's own certificate (RFC 7838 §2.1).
func (o *origin) openQUIC(ctx context.Context, at altsvc.Service, changed func()) (pool.Conn, pool.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, o.t.cfg.TLSHandshake)
	defer cancel()
	addrs, err := o.quicAddrs(ctx, at)
	if err != nil {
		return nil, pool.Info{}, err
	}
	results := make(chan opened, len(addrs))
	next := time.NewTimer(0)
	defer next.Stop()
	tried, left := 0, len(addrs)
	var failed error
	for {
		select {
		case <-next.C:
			if tried < len(addrs) {
				addr := addrs[tried]
				tried++
				o.watching.Go(func() {
					f, err := o.dialQUIC(ctx, addr, changed)
					results <- opened{conn: f, err: err}
				})
				next.Reset(quicStagger)
			}
		case r := <-results:
			left--
			if r.err == nil {
				for range tried - (len(addrs) - left) { // those still under way
					o.watching.Go(func() {
						if late := <-results; late.err == nil {
							late.conn.Shutdown()
						}
					})
				}
				return r.conn, pool.Info{Protocol: "h3", Multiplexed: true}, nil
			}
			failed = r.err
			if left == 0 {
				return nil, pool.Info{}, failed
			}
			next.Reset(0)
		}
	}
}

// quicAddrs are the addresses to try, in order.
func (o *origin) quicAddrs(ctx context.Context, at altsvc.Service) ([]netip.AddrPort, error) {
	shared, host := o.t.cfg.HTTP3, at.Host
	if host == "" {
		host = o.host
	}
	if shared.Direct != nil && !shared.Direct(net.JoinHostPort(host, strconv.Itoa(int(at.Port)))) {
		return nil, &Error{In: "tls", Kind: "upstream_unreachable", Err: fmt.Errorf("%s is behind the parent proxy, which carries no UDP", host)}
	}
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		addrs = []netip.Addr{a}
	} else if addrs, _, _, err = shared.Lookup(ctx, host); err != nil {
		return nil, &Error{In: "tls", Kind: "upstream_dns_failed", Err: err}
	}
	if i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() != addrs[0].Is4() }); i > 1 {
		addrs = []netip.Addr{addrs[0], addrs[i]}
	}
	var out []netip.AddrPort
	for _, a := range addrs[:min(len(addrs), quicAddrs)] {
		to := netip.AddrPortFrom(a, at.Port)
		if shared.Allowed != nil {
			if err := shared.Allowed(to); err != nil {
				return nil, err
			}
		}
		out = append(out, to)
	}
	if len(out) == 0 {
		return nil, &Error{In: "tls", Kind: "upstream_dns_failed", Err: fmt.Errorf("%s has no address", host)}
	}
	return out, nil
}

// dialQUIC opens a connection to one address and watches it.
func (o *origin) dialQUIC(ctx context.Context, addr netip.AddrPort, changed func()) (*flow, error) {
	f := &flow{quic: true, wake: make(chan struct{}, 1), answered: func() {
		o.t.cfg.HTTP3.Offers.Worked(time.Now(), o.key)
	}}
	cfg, session := o.tlsConfig(nil)
	begun := time.Now()
	c, err := o.t.cfg.HTTP3.Endpoint.Dial(ctx, addr, h3.Config{
		TLS: cfg, Tokens: o.t.quicTokens, HandshakeTimeout: o.t.cfg.TLSHandshake, MaxStreams: o.t.cfg.Pool.MaxStreams,
		Priority: true, QlogDir: o.t.cfg.QlogDir,
		StreamWindow: min(streamStart, o.t.cfg.StreamLimit), MaxStreamWindow: o.t.cfg.StreamLimit, Budget: o.t.cfg.Budget,
		OnChange: func() {
			f.changed()
			changed()
		},
	})
	if err != nil {
		cause := context.Cause(ctx)
		if errors.Is(cause, context.DeadlineExceeded) {
			cause = nil // the server, or the path, took too long
		}
		settle(session, tls.ConnectionState{}, err, cause)
		if cause == nil {
			o.t.handshaken(false, false, time.Since(begun), err)
		}
		return nil, err
	}
	f.clientConn = c
	f.log = o.t.cfg.Flights.Open("h3")
	f.log.Trace(c)
	settle(session, c.TLS(), nil, nil)
	stats := c.Stats()
	o.t.handshaken(stats.Resumed, stats.EarlyData, time.Since(begun), nil)
	if o.t.cfg.OnConn != nil {
		o.t.cfg.OnConn(1, "h3")
	}
	o.watching.Go(func() {
		defer f.log.Close()
		o.watch(o.ctx, f)
		f.broke()
		if o.t.cfg.OnConn != nil {
			o.t.cfg.OnConn(-1, "h3")
		}
		if !f.worked.Load() && f.Err() != nil && !errors.Is(context.Cause(o.ctx), context.Canceled) && f.tried.Load() {
			o.t.cfg.HTTP3.Offers.Failed(time.Now(), o.key) // it opened, and answered nothing
		}
	})
	return f, nil
}
