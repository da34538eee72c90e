// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

// maxResolvConf bounds what is read of resolv.conf.
const maxResolvConf = 1 << 20 // 1 MiB

// A fileStamp tells one version of a file from another.
type fileStamp struct {
	modTime time.Time
	size    int64
	read    bool // once, at least
}

// readSystem reads resolv.conf if it has changed, and forgets what the system's
// resolvers said before.
func (r *Resolver) readSystem() {
	stamp := fileStamp{read: true}
	if st, err := os.Stat(r.cfg.ResolvConf); err == nil {
		stamp.modTime, stamp.size = st.ModTime(), st.Size()
	}
	r.mu.RLock()
	before, first := r.confFile, !r.confFile.read
	r.mu.RUnlock()
	if !first && before.size == stamp.size && before.modTime.Equal(stamp.modTime) {
		return
	}
	conf, native, err := readResolvConf(r.cfg.ResolvConf)
	r.complain(EventSystemResolvers, r.cfg.ResolvConf, err)
	if err != nil && !first {
		return // the last good reading counts
	}
	r.mu.Lock()
	same := reflect.DeepEqual(conf, r.conf)
	r.confFile, r.conf = stamp, conf
	r.mu.Unlock()
	if same && !first {
		return
	}
	r.replaceSystem(r.openSystem(conf, native), first)
	if !first {
		r.event(EventSystemResolvers, r.cfg.ResolvConf, nil)
	}
}

// readResolvConf reports native if the operating system has to be asked in its
// own way.
func readResolvConf(path string) (conf ResolvConf, native bool, err error) {
	conf = ResolvConf{Ndots: 1}
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		return conf, true, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return conf, true, nil
	}
	if err != nil {
		return conf, true, fmt.Errorf("read resolv.conf: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return conf, true, fmt.Errorf("read resolv.conf: %w", err)
	}
	return ParseResolvConf(b), false, nil
}

func (r *Resolver) openSystem(conf ResolvConf, native bool) []*server {
	if native {
		return []*server{{name: systemResolver, x: r.seams.native(), system: true}}
	}
	var list []*server
	for _, addr := range conf.Nameservers {
		s, err := r.open("udp://" + urlHost(addr))
		if err != nil { // such as a multicast address
			r.event(EventSystemResolvers, addr.String(), err)
			continue
		}
		s.name = "system " + addr.String()
		s.system, s.public = true, false // it is the system's choice
		list = append(list, s)
	}
	return list
}

// replaceSystem puts the new servers in the place of the old ones, which are
// closed.
func (r *Resolver) replaceSystem(list []*server, first bool) {
	r.mu.Lock()
	old := r.system
	r.system = list
	if !first {
		// Before the old ones are closed, so that a flight that this ends begins
		// anew.
		r.systemChangedLocked()
	}
	if r.closed { // Close has not seen the new ones
		old, r.system = append(old, list...), nil
	}
	r.mu.Unlock()
	for _, s := range old {
		r.closeServer(s)
	}
}

func (r *Resolver) closeServer(s *server) {
	if !r.spawn(func() { _ = s.x.Close() }) { // always nil
		_ = s.x.Close()
	}
}

// A native asks the operating system through Go's resolver, which tells no TTLs
// and no HTTPS records.
type native struct {
	resolver net.Resolver
	life     context.Context
	end      context.CancelFunc
}

// nativeTTL is how long its answers are kept. Guess: what most names of model
// APIs have is 60 s to 300 s.
const nativeTTL = time.Minute

func newNative() *native {
	n := &native{}
	n.life, n.end = context.WithCancel(context.Background())
	return n
}

func (n *native) Name() string { return systemResolver }

func (n *native) Close() error {
	n.end()
	return nil
}

// Exchange asks for addresses; other types have no records.
func (n *native) Exchange(ctx context.Context, q exchange.Question) (exchange.Answer, error) {
	network := map[uint16]string{exchange.TypeA: "ip4", exchange.TypeAAAA: "ip6"}[q.Type]
	if network == "" {
		return exchange.Answer{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	addrs, err := n.resolver.LookupNetIP(ctx, network, q.Name)
	if err != nil {
		return nativeError(err)
	}
	var a exchange.Answer
	for _, addr := range addrs {
		a.Records = append(a.Records, exchange.Record{Name: q.Name, Type: q.Type, TTL: nativeTTL, Addr: addr.WithZone("").Unmap()})
	}
	return a, nil
}

func nativeError(err error) (exchange.Answer, error) {
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		// It does not tell a missing name from a missing family.
		return exchange.Answer{}, nil
	}
	kind := exchange.KindUnreachable
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		kind = exchange.KindTimeout
	}
	return exchange.Answer{}, &exchange.Error{Resolver: systemResolver, Kind: kind, Err: err}
}

// A bootstrap finds the addresses of resolvers that were written without: by the
// hosts file, the resolvers given for it, or the system's. Never by the cache,
// whose resolvers may be the very ones that are to be found.
type bootstrap struct {
	r       *Resolver
	servers []*server

	known map[string][]netip.Addr // last good; guarded by Resolver.mu
}

const (
	maxBootstrap = 64 // names; there are fewer resolvers
	bootWait     = time.Second
)

func (b *bootstrap) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if addrs, _ := b.r.hosts.Lookup(host); len(addrs) > 0 {
		return addrs, nil
	}
	b.r.mu.RLock()
	servers := b.servers
	if len(servers) == 0 {
		servers = b.r.system
	}
	own, known := b.r.own, b.known[host]
	b.r.mu.RUnlock()
	if len(known) > 0 { // time must be left to use it
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bootWait)
		defer cancel()
	}
	addrs := b.ask(ctx, host, slices.DeleteFunc(slices.Clone(servers), func(s *server) bool { return s.is(own) }))
	if len(addrs) == 0 {
		if len(known) > 0 {
			return known, nil
		}
		return nil, fmt.Errorf("no resolver knows the address of %s: write it behind #addr=, or set dns.bootstrap", host)
	}
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if len(b.known) < maxBootstrap || known != nil {
		b.known[host] = addrs
		b.r.changed = true
	}
	return addrs, nil
}

// ask returns the addresses of the first server that has some.
func (b *bootstrap) ask(ctx context.Context, host string, servers []*server) []netip.Addr {
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan outcome, 2*len(servers))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, s := range servers {
		asking.Go(func() {
			asked := partSet{partA: true, partAAAA: true}
			o := b.r.round(ctx, turn{server: s}, host, asked, func(o outcome) { found <- o })
			o.final = true
			found <- o
		})
	}
	for left := len(servers); left > 0; {
		o := <-found
		if o.final {
			left--
		}
		if o.verdict() == verdictPositive {
			return append(slices.Clone(o.parts[partAAAA].addrs), o.parts[partA].addrs...)
		}
	}
	return nil
}
