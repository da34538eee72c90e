// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A fate is what one address does after a time.
type fate struct {
	after time.Duration // never, if negative
	err   error
}

// tracked counts that losers are closed.
type tracked struct {
	net.Conn
	addr   string
	closed *list
}

// A list is appended to by several goroutines.
type list struct {
	mu    sync.Mutex // guards items
	items []string
}

func (l *list) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, s)
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.items)
}

func (c *tracked) Close() error {
	c.closed.add(c.addr)
	return nil
}

func TestRace(t *testing.T) {
	const ms = time.Millisecond
	const v6a, v6b, v4a, v4b = "2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"
	dead := fate{after: -1}
	refused := fate{err: syscall.ECONNREFUSED}
	tests := []struct {
		name   string
		answer []string // of the resolver, in its order
		fates  map[string]fate
		wins   string
		after  time.Duration
		order  []string
		closed []string
		code   string
	}{
		{name: "the first address answers", answer: []string{v6a, v4a}, fates: map[string]fate{v6a: {after: 10 * ms}}, wins: v6a, after: 10 * ms, order: []string{v6a}},
		{name: "a dead family costs a stagger", answer: []string{v6a, v6b, v4a}, fates: map[string]fate{v6a: dead, v6b: dead, v4a: {after: ms}}, wins: v4a, after: 251 * ms, order: []string{v6a, v4a}},
		{name: "a refusal costs nothing", answer: []string{v6a, v4a}, fates: map[string]fate{v6a: refused, v4a: {after: ms}}, wins: v4a, after: ms, order: []string{v6a, v4a}},
		{name: "families take turns", answer: []string{v4a, v4b, v6a, v6b}, fates: map[string]fate{v4a: refused, v4b: refused, v6a: refused, v6b: {}}, wins: v6b, order: []string{v4a, v6a, v4b, v6b}},
		{name: "the loser is closed", answer: []string{v6a, v4a}, fates: map[string]fate{v6a: {after: 300 * ms}, v4a: {after: 100 * ms}}, wins: v6a, after: 300 * ms, order: []string{v6a, v4a}, closed: []string{v4a}},
		{name: "all refuse", answer: []string{v6a, v4a}, fates: map[string]fate{v6a: refused, v4a: refused}, code: "upstream_connect_refused", order: []string{v6a, v4a}},
		{name: "all are dead", answer: []string{v6a, v4a}, fates: map[string]fate{v6a: dead, v4a: dead}, code: "upstream_connect_timeout", after: 5 * time.Second, order: []string{v6a, v4a}},
		{name: "no address", answer: nil, code: "upstream_dns_failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var order, closed list
				d := New(Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
					var out []netip.Addr
					for _, s := range tt.answer {
						out = append(out, netip.MustParseAddr(s))
					}
					return out, nil
				}})
				d.open = func(ctx context.Context, _, addr string) (net.Conn, error) {
					host := netip.MustParseAddrPort(addr).Addr().String()
					order.add(host)
					f := tt.fates[host]
					if f.after < 0 {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(f.after) // of the bubble
					if f.err != nil {
						return nil, &net.OpError{Op: "dial", Err: f.err}
					}
					return &tracked{addr: host, closed: &closed}, nil
				}
				start := time.Now()
				c, err := d.DialContext(t.Context(), "tcp", "model.test:443")
				took := time.Since(start)
				synctest.Wait()
				time.Sleep(time.Second) // whoever is still on the way arrives
				if tt.code != "" {
					var e *Error
					if !errors.As(err, &e) || e.Code() != tt.code || e.RequestSent() {
						t.Errorf("error %v, want %s", err, tt.code)
					}
				} else if err != nil {
					t.Fatal(err)
				} else if got := c.(*tracked).addr; got != tt.wins {
					t.Errorf("%s won, want %s", got, tt.wins)
				}
				if took != tt.after || !slices.Equal(order.all(), tt.order) || !slices.Equal(closed.all(), tt.closed) {
					t.Errorf("took %v, tried %v, closed %v; want %v, %v, %v", took, order.all(), closed.all(), tt.after, tt.order, tt.closed)
				}
			})
		})
	}
}

var errPolicy = errors.New("policy")

func TestDenyIsAskedForTheAddress(t *testing.T) {
	d := New(Config{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
		},
		Deny: func(ap netip.AddrPort) error {
			if ap.Addr().IsLinkLocalUnicast() {
				return errPolicy
			}
			return nil
		},
	})
	d.open = func(context.Context, string, string) (net.Conn, error) { t.Error("dialled"); return nil, net.ErrClosed }
	if _, err := d.DialContext(t.Context(), "tcp", "innocent.test:80"); !errors.Is(err, errPolicy) {
		t.Errorf("DialContext = %v, want what Deny said", err)
	}
	if _, err := d.DialContext(t.Context(), "tcp", "[fe80::1%25lo]:80"); err == nil {
		t.Error("a zone was dialled")
	}
}

func TestTheEndOfTheCallersContextIsItsOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Resolve: func(ctx context.Context, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errPolicy) })
		if _, err := d.DialContext(ctx, "tcp", "model.test:443"); !errors.Is(err, errPolicy) {
			t.Errorf("DialContext = %v, want the cause of the context's end", err)
		}
	})
}

func TestASlowResolverIsATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Timeout: time.Second, Resolve: func(ctx context.Context, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		_, err := d.DialContext(t.Context(), "tcp", "model.test:443")
		var e *Error
		if !errors.As(err, &e) || e.Code() != "upstream_dns_timeout" || !e.Timeout() || e.Phase() != "dns" || !strings.Contains(err.Error(), "timeouts.connect") {
			t.Errorf("DialContext = %v", err)
		}
	})
}

func TestHooksAreCalled(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var seen []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		DNSStart:     func(httptrace.DNSStartInfo) { seen = append(seen, "dns") },
		DNSDone:      func(httptrace.DNSDoneInfo) { seen = append(seen, "dns done") },
		ConnectStart: func(string, string) { seen = append(seen, "connect") },
		ConnectDone:  func(string, string, error) { seen = append(seen, "connect done") },
	})
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	d := New(Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}})
	c, err := d.DialContext(ctx, "tcp", "model.test:"+port)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if got := strings.Join(seen, ", "); got != "dns, dns done, connect, connect done" {
		t.Errorf("hooks: %s", got)
	}
}
