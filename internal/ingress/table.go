// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/ws"
	"github.com/warmwire/warmwire/internal/tenant"
	"github.com/warmwire/warmwire/internal/webguard"
)

// ErrLoop is matched by a dial error that refused one of our own listeners as
// the target; the app gets 508.
var ErrLoop = errors.New("the target is this Warmwire itself")

// ErrForbidden is matched by a dial error that refused the target's address by
// policy, such as a metadata service; the app gets 403.
var ErrForbidden = errors.New("the target's address is refused")

// DialFunc opens a connection for a tunnel.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// An Upstream is one model API.
type Upstream struct {
	Name       string
	URL        *url.URL // scheme, authority and the path put before every target
	Dialect    dialect.Kind
	Transport  http.RoundTripper
	SetHeaders http.Header            // injected credentials and the like; replace the app's own
	FirstToken time.Duration          // request to first token-bearing event; 0 = none
	Idle       time.Duration          // silence of the upstream inside a response; 0 = none
	Total      time.Duration          // request to end; 0 = none
	Stall      time.Duration          // of an app that takes nothing of its answer; 0 = none
	Spool      *bufferctl.SpoolConfig // takes an answer faster than its app does; nil = the upstream waits
	// Heartbeats are those of one WebSocket, whose upstream's side is socket: what the way
	// out gave as the body of its 101. nil, or a nil answer = its ends ping each other.
	Heartbeats func(socket io.ReadWriteCloser) *Heartbeats
	Reattach   *Reattach     // apps may name streams and come back to them; nil = not
	ReadAhead  int           // bytes of a WebSocket's side that are held for the other; 0 = 1 MiB
	Priority   string        // the class of requests of which nothing else says it; "" = default
	Classes    []PathClass   // the first that fits counts
	Comments   time.Duration // a silent event stream gets a comment so often; 0 = none
	ErrorEvent bool          // a cut event stream gets an error event of the dialect first

	loopback bool
}

// injects says whether the upstream adds credentials, which makes the port
// worth stealing.
func (u *Upstream) injects() bool { return len(u.SetHeaders) > 0 }

// Heartbeats keep the two sides of one WebSocket and tell when one is dead.
type Heartbeats struct {
	App, Upstream ws.Policy
	Pulse         func() (app, upstream Pulse) // what they know now; safe at any time
	End           func()                       // called once, when the WebSocket has ended
}

// A Pulse is what a heartbeat knows of its side.
type Pulse struct {
	Verdict       string
	RTT, Interval time.Duration // 0 = not known
	Limit         time.Duration // for which the path keeps a silent connection, as learned
}

// Forward says what happens to hosts that are no upstream.
type Forward struct {
	Deny      func(host string) bool // nil = none; host without port or brackets
	DenyAll   bool                   // forward.default: deny
	Transport http.RoundTripper      // for absolute-form requests
	Dial      DialFunc               // for CONNECT
	Idle      time.Duration          // as Upstream.Idle
	Stall     time.Duration          // as Upstream.Stall
	// TunnelIdle ends a tunnel in which nothing has moved for so long. 0 = no limit.
	TunnelIdle time.Duration
}

// A Table is the part of the configuration that a reload replaces. It must not
// be changed after it was given to a Server.
type Table struct {
	Upstreams    []*Upstream
	Forward      Forward
	Via          bool
	ServerTiming bool // answers say where the time went
	// ContinueTraces puts a span of ours into traces that an app records; otherwise its
	// traceparent goes on as it came.
	ContinueTraces bool
	Token          string
	AllowHosts     []string // further names by which apps reach our listener
	AllowOrigins   []string // web origins that may call us: scheme://host[:port]
	AllowUIDs      []uint32 // users, besides our own, that injected credentials serve
	MaxBody        int64    // bytes of a request body; 0 = no limit
	// Tenants are those who may call, instead of Token and AllowUIDs. nil = everybody.
	Tenants *tenant.Book

	origins webguard.Origins
	byName  map[string]*Upstream
	byHost  map[string]*Upstream // host:port, lower case; loopback upstreams are not in it
	byAddr  map[string]*Upstream // host:port, all of them, for the proxy form
}

// prepare builds the look-up maps and checks what New cannot do without.
func (t *Table) prepare() error {
	var err error
	if t.origins, err = webguard.ParseOrigins(t.AllowOrigins); err != nil {
		return fmt.Errorf("ingress: %w", err)
	}
	t.byName = make(map[string]*Upstream, len(t.Upstreams))
	t.byHost = make(map[string]*Upstream, len(t.Upstreams))
	t.byAddr = make(map[string]*Upstream, len(t.Upstreams))
	for _, u := range t.Upstreams {
		if u.Transport == nil || u.URL == nil {
			return fmt.Errorf("ingress: upstream %q has no transport or URL", u.Name)
		}
		hp := hostPort(u.URL.Host, u.URL.Scheme)
		u.loopback = isLoopbackHost(u.URL.Hostname())
		t.byName[u.Name] = u
		t.byAddr[hp] = u
		if !u.loopback {
			t.byHost[hp] = u
		}
	}
	return nil
}

// hostPort returns host:port in lower case with the scheme's default port, the
// form in which authorities are compared.
func hostPort(authority, scheme string) string {
	u := url.URL{Host: authority}
	port := u.Port()
	if port == "" {
		port = "443"
		if scheme == "http" {
			port = "80"
		}
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	return net.JoinHostPort(host, port)
}

// isLoopbackHost says whether a host names this machine without asking DNS.
func isLoopbackHost(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761 §6.3
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && (a.Unmap().IsLoopback() || a.IsUnspecified())
}

// hostname is the host of an authority, without port and brackets.
func hostname(authority string) string { return (&url.URL{Host: authority}).Hostname() }
