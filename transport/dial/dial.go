// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Config is plain data and policy. The zero value is the default.
type Config struct {
	Timeout time.Duration // of the lookup and all addresses together; 0 = 5 s
	// Deny is asked right before an address is dialled; nil = all are allowed.
	Deny func(netip.AddrPort) error
	// Resolve looks a name up; nil = Go's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Memory is shared by dialers that meet the same hosts; nil = one of its own.
	Memory *Memory
	// Congestion names the congestion control of the connections, as in bbr;
	// "" = the system's. Linux only; one that the kernel does not have is an error.
	Congestion string
}

// A Dialer opens TCP connections.
type Dialer struct {
	cfg  Config
	open func(ctx context.Context, network, addr string) (net.Conn, error) // one address
}

// New returns a Dialer.
func New(cfg Config) *Dialer {
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Resolve == nil {
		cfg.Resolve = resolve
	}
	if cfg.Memory == nil {
		cfg.Memory = new(Memory)
	}
	tcp := net.Dialer{
		Control:         control(cfg.Congestion),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepIdle * time.Second, Interval: keepInterval * time.Second, Count: keepCount},
	}
	return &Dialer{cfg: cfg, open: tcp.DialContext}
}

// resolve asks for a name with a dot as absolute first: search domains are for
// short names (RFC 1535).
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if strings.Contains(host, ".") && !strings.HasSuffix(host, ".") {
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host+".")
		var de *net.DNSError
		if err == nil || !errors.As(err, &de) || !de.IsNotFound {
			return addrs, err
		}
		// Files such as /etc/hosts may hold the name without the dot only.
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// DialContext opens a connection to host:port. Its error is a [*Error], which wraps
// what Deny returned, or the end of ctx.
func (d *Dialer) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &Error{Step: "connect", Kind: "upstream_connect_failed", Addr: addr, Err: err}
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, &Error{Step: "connect", Kind: "upstream_connect_failed", Addr: addr, Err: err}
	}
	limited, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	addrs, err := d.lookup(limited, host)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, dnsError(addr, err)
	}
	conn, err := d.race(limited, host, addrs, uint16(port))
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var de *deniedError
		if errors.As(err, &de) {
			return nil, Denied(addr, de.err)
		}
		return nil, connectError(addr, err)
	}
	return conn, nil
}

func (d *Dialer) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.DNSStart != nil {
		trace.DNSStart(httptrace.DNSStartInfo{Host: host})
	}
	// The lookup calls hooks of its own, for its own servers: not these.
	addrs, err := d.cfg.Resolve(httptrace.WithClientTrace(withoutTrace{ctx}, &httptrace.ClientTrace{}), host)
	if trace != nil && trace.DNSDone != nil {
		trace.DNSDone(httptrace.DNSDoneInfo{Err: err})
	}
	if err == nil && len(addrs) == 0 {
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return addrs, err
}

// withoutTrace hides the values of a context, so that hooks are not inherited.
type withoutTrace struct{ context.Context }

func (withoutTrace) Value(any) any { return nil }

// interleave orders addresses so that the families take turns, the first one's
// family first (RFC 8305 §4).
func interleave(addrs []netip.Addr) []netip.Addr {
	var a, b []netip.Addr
	for _, x := range addrs {
		if x.Is4() == addrs[0].Is4() {
			a = append(a, x)
		} else {
			b = append(b, x)
		}
	}
	out := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(a), len(b)) {
		if i < len(a) {
			out = append(out, a[i])
		}
		if i < len(b) {
			out = append(out, b[i])
		}
	}
	return out
}

// deniedError carries a refusal of Deny out of the race unchanged.
type deniedError struct{ err error }

func (e *deniedError) Error() string { return e.err.Error() }

type attempt struct {
	addr netip.Addr
	took time.Duration
	conn net.Conn
	err  error
}

// race tries the addresses in the order of the memory, one every stagger, and the
// next at once when one fails. The first connection wins; the others are closed.
func (d *Dialer) race(parent context.Context, host string, addrs []netip.Addr, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	addrs, wait := d.cfg.Memory.order(host, addrs)
	results := make(chan attempt, len(addrs))
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failed error
	started, ended := 0, 0
	defer func() { // whoever is still on the way finds nobody waiting
		left := started - ended
		go func() {
			for range left {
				if a := <-results; a.conn != nil {
					_ = a.conn.Close()
				}
			}
		}()
	}()
	for ended < len(addrs) {
		next := timer.C
		if started == len(addrs) {
			next = nil
		}
		select {
		case <-next:
			ap := netip.AddrPortFrom(addrs[started], port)
			started++
			go func() {
				begun := time.Now()
				c, err := d.one(ctx, ap)
				results <- attempt{ap.Addr(), time.Since(begun), c, err}
			}()
			timer.Reset(wait)
		case a := <-results:
			ended++
			if a.err == nil {
				d.cfg.Memory.connected(host, a.addr, a.took)
				return a.conn, nil
			}
			if parent.Err() == nil { // else it had no chance
				d.cfg.Memory.Failed(host, a.addr)
			}
			failed = worse(failed, a.err)
			timer.Reset(0)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, failed
}

// worse keeps the error that tells most: a refusal of ours, else the first.
func worse(a, b error) error {
	var de *deniedError
	if a == nil || errors.As(b, &de) {
		return b
	}
	return a
}

// one dials one address.
func (d *Dialer) one(ctx context.Context, ap netip.AddrPort) (net.Conn, error) {
	if d.cfg.Deny != nil {
		if err := d.cfg.Deny(ap); err != nil {
			return nil, &deniedError{err}
		}
	}
	// net.Dialer calls the connect hooks of the context itself.
	c, err := d.open(ctx, "tcp", ap.String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ap, err)
	}
	return c, nil
}
