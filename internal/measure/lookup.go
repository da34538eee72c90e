// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

// lookupLimit is how long one lookup may take.
const lookupLimit = 5 * time.Second

// A Resolver looks names up in one way.
type Resolver struct {
	Name string
	ask  func(ctx context.Context, host string) ([]netip.Addr, error)
	stop func() error
}

// Close closes the connections to it.
func (r *Resolver) Close() error { return r.stop() }

// Lookup returns the addresses of host, both families.
func (r *Resolver) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := r.ask(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return addrs, err
}

// ResolverNames are the names that ParseResolvers knows besides URLs.
func ResolverNames() []string { return append([]string{"system"}, exchange.Presets()...) }

// ParseResolvers reads a list such as system,cloudflare,tls://9.9.9.9. roots are
// for encrypted resolvers; nil means the system's. The caller closes them.
func ParseResolvers(list string, roots *x509.CertPool) ([]*Resolver, error) {
	var out []*Resolver
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "system" {
			out = append(out, systemResolver())
			continue
		}
		spec, err := exchange.ParseSpec(part)
		if err == nil {
			var ex exchange.Exchanger
			if ex, err = exchange.Open(spec, exchange.Config{Roots: func() *x509.CertPool { return roots }, Timeout: lookupLimit, Bootstrap: systemLookup}); err == nil {
				out = append(out, &Resolver{Name: ex.Name(), ask: func(ctx context.Context, host string) ([]netip.Addr, error) {
					return askBoth(ctx, ex, host)
				}, stop: ex.Close})
				continue
			}
		}
		return nil, errors.Join(fmt.Errorf("%w (or system)", err), CloseResolvers(out))
	}
	return out, nil
}

// CloseResolvers closes all of them.
func CloseResolvers(list []*Resolver) error {
	var err error
	for _, r := range list {
		err = errors.Join(err, r.Close())
	}
	return err
}

func systemResolver() *Resolver {
	return &Resolver{Name: "system", ask: systemLookup, stop: func() error { return nil }}
}

// systemLookup asks Go's resolver, which reads resolv.conf and keeps nothing.
func systemLookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// askBoth asks for both families at once, as clients do, and waits for both.
func askBoth(ctx context.Context, ex exchange.Exchanger, host string) ([]netip.Addr, error) {
	types := [...]uint16{exchange.TypeAAAA, exchange.TypeA}
	var answers [len(types)]exchange.Answer
	var errs [len(types)]error
	done := make(chan struct{})
	go func() {
		defer close(done)
		answers[1], errs[1] = ex.Exchange(ctx, exchange.Question{Name: host, Type: types[1]})
	}()
	answers[0], errs[0] = ex.Exchange(ctx, exchange.Question{Name: host, Type: types[0]})
	<-done
	var addrs []netip.Addr
	for i, a := range answers {
		switch {
		case errs[i] != nil:
		case a.RCode == exchange.RCodeNXDomain:
			errs[i] = &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		case a.RCode != exchange.RCodeSuccess:
			errs[i] = fmt.Errorf("%s answers with code %d", ex.Name(), a.RCode)
		}
		for _, r := range a.Records {
			if r.Addr.IsValid() {
				addrs = append(addrs, r.Addr)
			}
		}
	}
	if len(addrs) > 0 {
		return addrs, nil
	}
	return nil, cmp.Or(errs[0], errs[1])
}

// dialResolved returns a dial function whose names are looked up by resolve and
// whose addresses are tried in turn.
func dialResolved(resolve func(context.Context, string) ([]netip.Addr, error), dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if _, err := netip.ParseAddr(host); err == nil {
			return dial(ctx, network, address)
		}
		hooks := httptrace.ContextClientTrace(ctx)
		if hooks != nil && hooks.DNSStart != nil {
			hooks.DNSStart(httptrace.DNSStartInfo{Host: host})
		}
		// A resolver's own connections are not the call's.
		addrs, err := resolve(untraced{ctx}, host)
		if hooks != nil && hooks.DNSDone != nil {
			hooks.DNSDone(httptrace.DNSDoneInfo{Err: err})
		}
		if err != nil {
			return nil, err
		}
		var failed error
		for _, a := range addrs {
			conn, err := dial(ctx, network, net.JoinHostPort(a.String(), port))
			if err == nil {
				return conn, nil
			}
			failed = cmp.Or(failed, err)
		}
		return nil, failed
	}
}

// untraced hides the values of a context, and so its hooks.
type untraced struct{ context.Context }

func (untraced) Value(any) any { return nil }

// Lookups compares resolvers.
type Lookups struct {
	Host      string
	Resolvers []*LookupSummary
}

// A LookupSummary is what one resolver did.
type LookupSummary struct {
	Name      string
	First     time.Duration // of the first lookup, with all it takes to reach the resolver; 0 means it failed
	Took      Dist          // of those after it
	Failed    map[string]int
	Addresses []netip.Addr // all that were ever answered, sorted
	Lookups   int
}

// CompareLookups looks host up n times with each resolver, in turn, so that a
// drift of the network meets all. step is called after each round.
func CompareLookups(ctx context.Context, host string, resolvers []*Resolver, n int, step func()) *Lookups {
	l := &Lookups{Host: host}
	for _, r := range resolvers {
		l.Resolvers = append(l.Resolvers, &LookupSummary{Name: r.Name, Failed: map[string]int{}})
	}
	for round := range n {
		for i := range resolvers {
			i = (i + round) % len(resolvers) // nobody always goes first and fills the others' caches
			start := time.Now()
			addrs, err := resolvers[i].Lookup(ctx, host)
			took := time.Since(start)
			if ctx.Err() != nil {
				return l
			}
			l.Resolvers[i].add(addrs, err, took)
		}
		step()
	}
	return l
}

func (s *LookupSummary) add(addrs []netip.Addr, err error, took time.Duration) {
	s.Lookups++
	switch {
	case err != nil:
		s.Failed[lookupFailure(err)]++
		return
	case s.Lookups == 1:
		s.First = took
	default:
		s.Took.Add(took)
	}
	for _, a := range addrs {
		a = a.Unmap()
		if i, there := slices.BinarySearchFunc(s.Addresses, a, netip.Addr.Compare); !there {
			s.Addresses = slices.Insert(s.Addresses, i, a)
		}
	}
}

// lookupFailure names a failure shortly.
func lookupFailure(err error) string {
	var ex *exchange.Error
	var de *net.DNSError
	switch {
	case errors.As(err, &ex):
		return string(ex.Kind)
	case errors.As(err, &de) && de.IsNotFound:
		return "no such host"
	case errors.As(err, &de) && de.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "failed"
}

// WriteLookups writes a table for people: the first lookup apart, because it
// makes the connection, and who answers otherwise than the first resolver.
func WriteLookups(w io.Writer, l *Lookups) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "lookups of %s, ms\tfirst\tp50\tp99\tratio p50\tfailed\t  answer\t\n", l.Host)
	base := l.Resolvers[0]
	for _, s := range l.Resolvers {
		first, p50, p99, ratio := "–", "–", "–", "–"
		if s.First > 0 {
			first = number(ms(s.First))
		}
		if s.Took.Len() > 0 {
			p50, p99 = number(ms(s.Took.Quantile(0.5))), number(ms(s.Took.Quantile(0.99)))
			if s != base && base.Took.Len() > 0 {
				ratio = number(float64(s.Took.Quantile(0.5)) / float64(base.Took.Quantile(0.5)))
			}
		}
		answer := fmt.Sprintf("%d addresses", len(s.Addresses))
		if s != base {
			answer = "the same"
			if !slices.Equal(s.Addresses, base.Addresses) {
				answer = fmt.Sprintf("another one: %d addresses, %d of them in common", len(s.Addresses), common(s.Addresses, base.Addresses))
			}
		}
		failures := 0
		for _, n := range s.Failed {
			failures += n
		}
		row(t, s.Name, first, p50, p99, ratio, fmt.Sprintf("%d of %d", failures, s.Lookups), "  "+answer)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range l.Resolvers {
		for _, reason := range slices.Sorted(maps.Keys(s.Failed)) {
			if _, err := fmt.Fprintf(w, "%s: %d failed: %s\n", s.Name, s.Failed[reason], reason); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

func common(a, b []netip.Addr) (n int) {
	for _, x := range a {
		if slices.Contains(b, x) {
			n++
		}
	}
	return n
}

// MarshalJSON has times in milliseconds, as the summary of calls.
func (l *Lookups) MarshalJSON() ([]byte, error) {
	type resolver struct {
		Name      string         `json:"name"`
		Lookups   int            `json:"lookups"`
		First     float64        `json:"first_ms,omitempty"`
		P50       float64        `json:"p50_ms,omitempty"`
		P99       float64        `json:"p99_ms,omitempty"`
		Failed    map[string]int `json:"failed,omitempty"`
		Addresses []netip.Addr   `json:"addresses"`
	}
	out := struct {
		Host      string     `json:"host"`
		Resolvers []resolver `json:"resolvers"`
	}{Host: l.Host}
	for _, s := range l.Resolvers {
		r := resolver{Name: s.Name, Lookups: s.Lookups, First: ms(s.First), Failed: s.Failed, Addresses: s.Addresses}
		if s.Took.Len() > 0 {
			r.P50, r.P99 = ms(s.Took.Quantile(0.5)), ms(s.Took.Quantile(0.99))
		}
		out.Resolvers = append(out.Resolvers, r)
	}
	return json.Marshal(out)
}
