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
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

const (
	// stubStaleTTL is what programs may keep of an answer whose time has run out
	// (RFC 8767 section 4).
	stubStaleTTL = 30
	stubHostsTTL = 5 // as long as a change of the hosts file takes to show
	// maxStubQuestions bounds the questions at once; further ones are refused.
	maxStubQuestions = 256
	stubTimeout      = 8 * time.Second
	stubUDPSize      = 1232 // what the stub offers; on loopback it never fragments
	stubNotSupported = 21   // extended error, RFC 8914 section 4.22
	stubStaleAnswer  = 3    // RFC 8914 section 4.4
)

// A Stub answers the machine's own programs over UDP and TCP from a Resolver.
type Stub struct {
	r        *Resolver
	addr     netip.AddrPort
	packets  net.PacketConn
	listener net.Listener
	slots    chan struct{}
}

// ListenStub opens a stub on an address of loopback; any other is refused, because
// whoever can reach a resolver can use it against others. Port 0 takes a free
// one. Nothing is answered before [Stub.Run].
func (r *Resolver) ListenStub(ctx context.Context, address string) (*Stub, error) {
	return r.StubOn(ctx, address, nil, nil)
}

// StubOn is as ListenStub, on sockets that are open already and that it takes over. What
// is nil it opens.
func (r *Resolver) StubOn(ctx context.Context, address string, listener net.Listener, packets net.PacketConn) (*Stub, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dns.listen %q: write IP:port, as in 127.0.0.1:53", address)
	}
	if !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("dns.listen %s is not on loopback: write 127.0.0.1 or [::1]", at)
	}
	s := &Stub{r: r, slots: make(chan struct{}, maxStubQuestions), listener: listener, packets: packets}
	for try := 0; ; try++ {
		if err = s.open(ctx, at); err == nil {
			break
		}
		if at.Port() != 0 || try == 10 {
			return nil, fmt.Errorf("open dns.listen %s: %w", at, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = append(slices.Clone(r.own), s.addr)
	return s, nil
}

// open takes the same port for both protocols.
func (s *Stub) open(ctx context.Context, at netip.AddrPort) (err error) {
	var lc net.ListenConfig
	if s.listener == nil {
		if s.listener, err = lc.Listen(ctx, "tcp", at.String()); err != nil {
			return err
		}
	}
	s.addr = s.listener.Addr().(*net.TCPAddr).AddrPort()
	if s.packets == nil {
		if s.packets, err = lc.ListenPacket(ctx, "udp", s.addr.String()); err != nil {
			_ = s.listener.Close()
			s.listener = nil
			return err
		}
	}
	return nil
}

// Sockets are those it answers on, for a process that takes them over.
func (s *Stub) Sockets() (net.Listener, net.PacketConn) { return s.listener, s.packets }

// Addr is where the stub listens.
func (s *Stub) Addr() netip.AddrPort { return s.addr }

// Run answers until ctx ends, and then returns nil once the last answer is out.
// It closes the stub. Call it once.
func (s *Stub) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) { s.serve(ctx, w, m) })
	servers := []*dns.Server{
		{PacketConn: s.packets, Handler: handler, UDPSize: stubUDPSize},
		{Listener: s.listener, Handler: handler, MaxTCPQueries: -1},
	}
	errs := make([]error, len(servers))
	var running sync.WaitGroup
	var starting sync.WaitGroup
	for i, server := range servers {
		starting.Add(1)
		server.NotifyStartedFunc = sync.OnceFunc(starting.Done)
		running.Go(func() {
			defer server.NotifyStartedFunc()
			errs[i] = server.ActivateAndServe()
			cancel() // one without the other is of no use
		})
	}
	starting.Wait()
	<-ctx.Done()
	for _, server := range servers {
		_ = server.Shutdown() // or it has ended by itself, which errs tells
	}
	running.Wait()
	_ = s.packets.Close()
	_ = s.listener.Close()
	s.r.mu.Lock()
	s.r.own = slices.DeleteFunc(slices.Clone(s.r.own), func(a netip.AddrPort) bool { return a == s.addr })
	s.r.mu.Unlock()
	return errors.Join(errs...)
}

func (s *Stub) serve(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) {
	out := new(dns.Msg).SetReply(m)
	out.RecursionAvailable = true
	if opt := m.IsEdns0(); opt != nil {
		out.SetEdns0(stubUDPSize, false)
	}
	select {
	case s.slots <- struct{}{}:
		s.fill(ctx, out, m)
		<-s.slots
	default:
		out.Rcode = dns.RcodeServerFailure
	}
	size := dns.MaxMsgSize
	if w.LocalAddr().Network() == "udp" {
		size = dns.MinMsgSize
		if opt := m.IsEdns0(); opt != nil {
			size = max(int(opt.UDPSize()), dns.MinMsgSize)
		}
	}
	out.Truncate(size)
	_ = w.WriteMsg(out) // who asked has gone
}

// fill answers one question.
func (s *Stub) fill(ctx context.Context, out, m *dns.Msg) {
	if m.Opcode != dns.OpcodeQuery {
		out.Rcode = dns.RcodeNotImplemented
		return
	}
	if len(m.Question) != 1 || m.Question[0].Qclass != dns.ClassINET {
		out.Rcode = dns.RcodeRefused
		return
	}
	q := m.Question[0]
	switch q.Qtype {
	case exchange.TypeA, exchange.TypeAAAA, exchange.TypeHTTPS:
	default:
		// "No such type" would be a lie.
		out.Rcode = dns.RcodeNotImplemented
		explain(out, stubNotSupported, "only A, AAAA and HTTPS are answered here")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stubTimeout)
	defer cancel()
	// What asks a resolver has been through its own search list.
	a, err := s.r.Lookup(ctx, q.Name)
	if err != nil {
		var de *net.DNSError
		switch {
		case !errors.As(err, &de) || !de.IsNotFound:
			out.Rcode = dns.RcodeServerFailure
			explain(out, 0, err.Error())
		case strings.HasPrefix(de.Err, errNoAddress):
			// The name is there.
		default:
			out.Rcode = dns.RcodeNameError
		}
		return
	}
	if a.Stale {
		explain(out, stubStaleAnswer, "")
	}
	out.Answer = records(q, a)
}

func explain(out *dns.Msg, code uint16, text string) {
	if opt := out.IsEdns0(); opt != nil {
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: text})
	}
}

// records makes the records of an answer, at the question's name: what aliases
// led there is not told.
func records(q dns.Question, a Answer) []dns.RR {
	ttl := uint32(a.TTL / time.Second)
	switch {
	case a.Stale:
		ttl = stubStaleTTL
	case a.Source == sourceHosts || a.Source == sourceLocalhost:
		ttl = stubHostsTTL
	}
	h := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: ttl}
	var out []dns.RR
	if q.Qtype == exchange.TypeHTTPS {
		for _, svc := range a.Services {
			out = append(out, serviceRecord(h, svc))
		}
		return out
	}
	for _, addr := range a.Addrs {
		switch {
		case addr.Zone() != "":
		case q.Qtype == exchange.TypeA && addr.Is4():
			out = append(out, &dns.A{Hdr: h, A: addr.AsSlice()})
		case q.Qtype == exchange.TypeAAAA && addr.Is6():
			out = append(out, &dns.AAAA{Hdr: h, AAAA: addr.AsSlice()})
		}
	}
	return out
}

func serviceRecord(h dns.RR_Header, svc Service) *dns.HTTPS {
	rr := &dns.HTTPS{SVCB: dns.SVCB{Hdr: h, Priority: svc.Priority, Target: dns.Fqdn(svc.Target)}}
	add := func(present bool, v dns.SVCBKeyValue) {
		if present {
			rr.Value = append(rr.Value, v)
		}
	}
	add(len(svc.ALPN) > 0, &dns.SVCBAlpn{Alpn: svc.ALPN})
	add(svc.NoDefaultALPN, &dns.SVCBNoDefaultAlpn{})
	add(svc.Port != 0, &dns.SVCBPort{Port: svc.Port})
	add(len(svc.IPv4Hints) > 0, &dns.SVCBIPv4Hint{Hint: ips(svc.IPv4Hints)})
	add(len(svc.ECH) > 0, &dns.SVCBECHConfig{ECH: svc.ECH})
	add(len(svc.IPv6Hints) > 0, &dns.SVCBIPv6Hint{Hint: ips(svc.IPv6Hints)})
	return rr
}

func ips(addrs []netip.Addr) []net.IP {
	out := make([]net.IP, len(addrs))
	for i, a := range addrs {
		out[i] = a.AsSlice()
	}
	return out
}
