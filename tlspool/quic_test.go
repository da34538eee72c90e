// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// serveQUIC runs a server that sends back what each stream brings.
func serveQUIC(t testing.TB, cert tls.Certificate, cfg *quic.Config) (addr string) {
	t.Helper()
	l, err := quic.ListenAddrEarly("127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"echo"}}, cfg)
	must(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			wg.Go(func() {
				str, err := c.AcceptStream(context.Background())
				if err == nil {
					_, _ = io.Copy(str, str)
					_ = str.Close()
				}
				<-c.Context().Done()
			})
		}
	})
	return l.Addr().String()
}

// A gate holds the peer's answers back until early data is on its way: quic-go opens a
// stream and applies the peer's transport parameters without a lock between (v0.65.0),
// which the race detector sees when the answer comes at that moment.
type gate struct {
	held atomic.Bool
	once sync.Once
	sent chan struct{}
}

func (g *gate) open() { g.once.Do(func() { close(g.sent) }) }

// An earlyCache closes the gate if the session allows early data. Without, dialling waits
// for the answer.
type earlyCache struct {
	*Handshake
	gate *gate
}

func (c earlyCache) Get(key string) (*tls.ClientSessionState, bool) {
	cs, ok := c.Handshake.Get(key)
	if ok && cs != nil {
		if _, st, err := cs.ResumptionState(); err == nil && st != nil && st.EarlyData {
			c.gate.held.Store(true)
		}
	}
	return cs, ok
}

// A gatedSocket lets quic-go set buffers, and read in one way only.
type gatedSocket struct {
	net.PacketConn
	udp  *net.UDPConn
	gate *gate
}

func (s gatedSocket) SetReadBuffer(n int) error             { return s.udp.SetReadBuffer(n) }
func (s gatedSocket) SetWriteBuffer(n int) error            { return s.udp.SetWriteBuffer(n) }
func (s gatedSocket) SyscallConn() (syscall.RawConn, error) { return s.udp.SyscallConn() }

func (s gatedSocket) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := s.PacketConn.ReadFrom(p)
	if s.gate.held.Load() {
		<-s.gate.sent
	}
	return n, from, err
}

// dialQUIC makes one connection and one echo, with 0-RTT if it can, and waits
// for a ticket.
func dialQUIC(ctx context.Context, h *Handshake, addr string, cfg *tls.Config) (quic.ConnectionState, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"echo"}
	gate := &gate{sent: make(chan struct{})}
	cfg.ClientSessionCache = earlyCache{h, gate}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return quic.ConnectionState{}, err
	}
	tr := &quic.Transport{Conn: gatedSocket{udp, udp, gate}}
	defer func() { _, _ = tr.Close(), udp.Close() }()
	defer gate.open() // before Close, which waits for a read
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return quic.ConnectionState{}, err
	}
	c, err := tr.DialEarly(ctx, to, cfg, &quic.Config{HandshakeIdleTimeout: 5 * time.Second})
	if err != nil {
		h.Failed(err)
		return quic.ConnectionState{}, err
	}
	defer func() { _ = c.CloseWithError(0, "") }()
	str, err := c.OpenStream()
	if err != nil {
		return quic.ConnectionState{}, err
	}
	if _, err := io.WriteString(str, "early"); err != nil {
		return quic.ConnectionState{}, err
	}
	_ = str.Close() // the sending half
	gate.open()
	if b, err := io.ReadAll(str); err != nil || string(b) != "early" {
		return quic.ConnectionState{}, errors.Join(errors.New("echo "+string(b)), err)
	}
	select {
	case <-c.HandshakeComplete():
	case <-ctx.Done():
		return quic.ConnectionState{}, ctx.Err()
	}
	h.Done(c.ConnectionState().TLS.DidResume)
	for tick := time.NewTicker(time.Millisecond); ; { // until the ticket has come
		if st := h.s.State(); len(st) > 0 && st[0].Tickets > 0 {
			tick.Stop()
			return c.ConnectionState(), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return quic.ConnectionState{}, errors.New("no ticket came")
		}
	}
}

func TestQUICSessionsWithEarlyData(t *testing.T) {
	p := ecPKI()
	for _, early := range []bool{true, false} {
		name := "0-RTT"
		if !early {
			name = "without 0-RTT"
		}
		t.Run(name, func(t *testing.T) {
			addr := serveQUIC(t, p.cert(host), &quic.Config{Allow0RTT: early})
			s := New(Config{})
			k := Key{ServerName: host, QUIC: true}
			for round := range 4 {
				st, err := dialQUIC(t.Context(), s.Handshake(k), addr, p.client())
				must(t, err)
				if want := round > 0; st.TLS.DidResume != want || st.Used0RTT != (want && early) {
					t.Errorf("connection %d: resumed %v, 0-RTT %v", round+1, st.TLS.DidResume, st.Used0RTT)
				}
				if round == 2 { // and through a file
					f := File{Path: t.TempDir() + "/sessions"}
					must(t, s.Save(f))
					s = New(Config{})
					must(t, s.Load(f))
				}
			}
		})
	}
}
