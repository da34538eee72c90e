// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
)

// newLab starts a lab that is closed with the test.
func newLab(t testing.TB, cfg netlab.Config) *netlab.Lab {
	t.Helper()
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	lab, err := netlab.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return lab
}

// serveEcho sends back what it gets, until the test ends. It returns its port.
func serveEcho(t testing.TB, host *netlab.Host) string {
	t.Helper()
	l, err := host.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	var conns conns
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.serve(c, func() { _, _ = io.Copy(c, c) })
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		conns.close()
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func within(t testing.TB, c net.Conn, d time.Duration) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
}

// conns are the accepted connections of a server in a test.
type conns struct {
	mu   sync.Mutex // guards open
	open []net.Conn
	work sync.WaitGroup
}

func (s *conns) serve(c net.Conn, f func()) {
	s.mu.Lock()
	s.open = append(s.open, c)
	s.mu.Unlock()
	s.work.Go(func() {
		f()
		_ = c.Close()
	})
}

func (s *conns) close() {
	s.mu.Lock()
	for _, c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// eventually waits for a condition on the real clock.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// pings sends n small messages, one after the other, and returns the times to
// their echoes, sorted.
func pings(t testing.TB, c net.Conn, n int) []time.Duration {
	t.Helper()
	within(t, c, 10*time.Second)
	var times []time.Duration
	buf := make([]byte, 64)
	for range n {
		start := time.Now()
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAtLeast(c, buf, 4); err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times
}

func addrs(h *netlab.Host) map[string]netip.Addr {
	return map[string]netip.Addr{"IPv4": h.Addr4(), "IPv6": h.Addr6()}
}

func dial(t testing.TB, lab *netlab.Lab, network string, addr netip.Addr, port string) net.Conn {
	t.Helper()
	c, err := lab.Client.Dial(t.Context(), network, net.JoinHostPort(addr.String(), port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The promise is under 1 ms at light load; here the machine may be busy with
// other tests, so the median may be late by 5 ms. The benchmark has the figures.
func TestDelay(t *testing.T) {
	lab := newLab(t, netlab.Config{Up: netlab.Link{Delay: 15 * time.Millisecond}, Down: netlab.Link{Delay: 5 * time.Millisecond}})
	port := serveEcho(t, lab.Server)
	udpPort := serveUDP(t, lab.Server)
	for family, addr := range addrs(lab.Server) {
		for network, port := range map[string]string{"tcp": port, "udp": udpPort} {
			t.Run(network+" "+family, func(t *testing.T) {
				times := pings(t, dial(t, lab, network, addr, port), 11)
				least, median := times[0], times[len(times)/2]
				if least < 20*time.Millisecond || median > 25*time.Millisecond {
					t.Errorf("round trips from %v, median %v, want 20ms to 25ms", least, median)
				}
				t.Logf("least %v, median %v", least, median)
			})
		}
	}
}

// serveUDP echoes datagrams. It returns its port.
func serveUDP(t testing.TB, host *netlab.Host) string {
	t.Helper()
	c, err := host.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	_, port, _ := net.SplitHostPort(c.LocalAddr().String())
	return port
}
