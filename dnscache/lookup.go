// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

// staleWait is how long a lookup waits for a refresh before it takes the answer
// whose time has run out. RFC 8767 section 5 suggests 1.8 s, for people; a
// resolver that is well answers in a tenth of that.
const staleWait = 200 * time.Millisecond

// An Answer is what is known of a name. Its slices must not be changed.
type Answer struct {
	Addrs    []netip.Addr // IPv6 first, those that failed lately last; never empty
	Services []Service    // the HTTPS records by priority
	Age      time.Duration
	TTL      time.Duration // what is left; 0 if stale
	Stale    bool
	Source   string // a resolver's name, "hosts", "localhost" or "address"
}

// The sources that are no resolver.
const (
	sourceHosts     = "hosts"
	sourceLocalhost = "localhost"
	sourceAddress   = "address"
)

// Lookup returns the addresses of a name and the parameters of its services. A
// name that ends in a dot is taken as it is; others may be completed by the
// system's search list, after they have been asked for as they are. Errors are
// *net.DNSError.
func (r *Resolver) Lookup(ctx context.Context, name string) (Answer, error) {
	a, result, err := r.lookup(ctx, name)
	if r.cfg.OnLookup != nil {
		r.cfg.OnLookup(result)
	}
	return a, err
}

// Addrs is Lookup for those who only want to connect. The caller may change what
// it returns.
func (r *Resolver) Addrs(ctx context.Context, name string) ([]netip.Addr, error) {
	a, err := r.Lookup(ctx, name)
	return slices.Clone(a.Addrs), err
}

func (r *Resolver) lookup(ctx context.Context, name string) (Answer, Result, error) {
	key := strings.ToLower(name)
	now := r.now()
	bare := strings.TrimSuffix(key, ".")
	if isLocalhost(bare) {
		return r.localhost(bare), ResultHosts, nil
	}
	if addrs := r.fromHosts(bare); len(addrs) > 0 {
		return Answer{Addrs: addrs, Source: sourceHosts}, ResultHosts, nil
	}
	r.mu.RLock()
	e := r.entries[key]
	r.mu.RUnlock()
	if e != nil {
		if v := e.view.Load(); v != nil && now < v.expires && now < v.until {
			if last := time.Duration(e.used.Load()); last <= v.learned || now-last >= time.Second {
				e.used.Store(int64(now)) // not each time, so that many do not write to one place
			}
			if v.err != nil {
				return Answer{}, ResultNegative, v.err
			}
			if now >= v.due && v.kicked.CompareAndSwap(false, true) {
				r.kick(e)
			}
			return v.answer(now), ResultHit, nil
		}
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		return Answer{Addrs: []netip.Addr{addr}, Source: sourceAddress}, ResultHosts, nil
	}
	return r.ask(ctx, key, bare)
}

func (v *view) answer(now time.Duration) Answer {
	return Answer{
		Addrs: v.addrs, Services: v.services, Source: v.source, Age: max(now-v.fetched, 0),
		TTL: max(v.expires-now, 0), Stale: now > v.expires,
	}
}

// localhost never leaves the machine (RFC 6761 section 6.3), whatever the hosts
// file says.
func (r *Resolver) localhost(name string) Answer {
	addrs := r.fromHosts(name)
	if len(addrs) == 0 || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.IsLoopback() }) {
		addrs = []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return Answer{Addrs: addrs, Source: sourceLocalhost}
}

func (r *Resolver) fromHosts(name string) []netip.Addr {
	addrs, checked, err := r.hosts.shared(name)
	if checked {
		r.complain(EventHostsFile, r.cfg.HostsFile, err)
	}
	return addrs
}

// kick starts a refresh that nobody waits for.
func (r *Resolver) kick(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refreshes < maxRefreshes && r.entries[e.key] == e && r.now() >= e.retry {
		_, _ = r.startLocked(e, &flight{explore: true}) // full or closed: the answer is fresh all the same
	}
}

// ask answers what the cache cannot answer at once.
func (r *Resolver) ask(ctx context.Context, key, bare string) (Answer, Result, error) {
	switch {
	case !isName(bare):
		return Answer{}, ResultError, &net.DNSError{Err: "not a host name: write international names in their xn-- form", Name: bare, IsNotFound: true}
	case r.scopes.of(bare, nil) == scopeNowhere:
		return Answer{}, ResultNegative, &net.DNSError{Err: "no such host: names of this kind are never looked up", Name: bare, IsNotFound: true}
	}
	if err := ctx.Err(); err != nil {
		return Answer{}, ResultError, contextError(bare, err)
	}
	w, err := r.begin(key)
	if err != nil {
		return Answer{}, ResultError, dnsError(key, err)
	}
	if w.flight == nil {
		return w.answer(r.now())
	}
	var patience <-chan time.Time
	if w.stale != nil && !w.stale.once {
		timer := time.NewTimer(staleWait)
		defer timer.Stop()
		patience = timer.C
	}
	select {
	case <-w.flight.done:
		if v := w.flight.view; v != nil {
			if v.err != nil {
				return Answer{}, ResultMiss, v.err
			}
			return v.answer(r.now()), ResultMiss, nil
		}
		w.err = w.flight.err
		w.stale = r.staleView(key, w.stale)
		return w.answer(r.now())
	case <-patience:
		return w.answer(r.now())
	case <-ctx.Done():
		if w.stale != nil {
			return w.answer(r.now())
		}
		return Answer{}, ResultError, contextError(bare, ctx.Err())
	}
}

// A wait is what a lookup has in hand: an old answer, an error, or a flight to
// wait for.
type wait struct {
	flight *flight
	stale  *view
	err    *net.DNSError
}

func (w wait) answer(now time.Duration) (Answer, Result, error) {
	switch {
	case w.stale == nil:
		return Answer{}, ResultError, w.err
	case w.stale.err != nil:
		return Answer{}, ResultNegative, w.stale.err
	case now < w.stale.expires:
		return w.stale.answer(now), ResultHit, nil
	}
	return w.stale.answer(now), ResultStale, nil
}

// begin sees what there is and starts what is needed.
func (r *Resolver) begin(key string) (wait, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	e := r.entries[key]
	if e == nil {
		if r.closed {
			return wait{}, errClosed
		}
		e = r.addLocked(key)
	}
	e.used.Store(int64(now))
	v := e.view.Load()
	if v == nil || now >= v.until {
		e.render(now, r.cfg.Stale)
		v = e.view.Load()
	}
	switch {
	case v != nil && now < v.expires && v.err != nil, v != nil && now < v.expires && now < v.due:
		return wait{stale: v}, nil // an other lookup was faster, or the order of addresses changed
	case v != nil && v.err != nil:
		v = nil
	}
	w := wait{stale: v, err: e.failed}
	if e.failed != nil && now < e.retry {
		return w, nil // RFC 9520: not again so soon
	}
	if _, dead := r.planLocked(e, false); dead && v != nil {
		return w, nil // a probe will find out when one is back
	}
	// Nor is there a reason to wait if it has failed before, or after a restart.
	atOnce := v != nil && !v.once && (e.loaded || e.failed != nil || now < v.expires)
	f, err := r.startLocked(e, &flight{explore: atOnce})
	switch {
	case atOnce:
		return w, nil
	case err != nil && v == nil:
		return w, err
	case err != nil:
		return w, nil
	}
	w.flight = f
	return w, nil
}

// staleView returns the last good answer after a flight that brought nothing.
func (r *Resolver) staleView(key string, before *view) *view {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[key]
	if e == nil {
		return before
	}
	e.render(r.now(), r.cfg.Stale)
	if v := e.view.Load(); v != nil && v.err == nil {
		return v
	}
	return nil
}

// notFound is the error of a name that has no address.
func notFound(key string, p *part) *net.DNSError {
	text := errNoAddress
	if p.nxdomain() {
		text = "no such host"
	}
	if !p.system {
		text += " (if it is a name of your own network, add its domain to dns.system_domains)"
	}
	return &net.DNSError{Err: text, Name: hostKey(key), Server: p.source, IsNotFound: true}
}

// dnsError is the error of a lookup that brought nothing.
func dnsError(key string, err error) *net.DNSError {
	e := &net.DNSError{Err: err.Error(), Name: hostKey(key), IsTemporary: true, UnwrapErr: err}
	if cause, ok := errors.AsType[*exchange.Error](err); ok {
		e.Server = cause.Resolver
		e.IsTimeout = cause.Timeout()
	}
	return e
}

func contextError(name string, err error) *net.DNSError {
	return &net.DNSError{
		Err: fmt.Sprintf("gave up waiting for the resolvers: %v", err), Name: name, UnwrapErr: err,
		IsTimeout: errors.Is(err, context.DeadlineExceeded), IsTemporary: true,
	}
}

// errNoAddress begins the text of an error about a name that is there.
const errNoAddress = "the name has no address"
