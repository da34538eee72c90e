// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func addrs(list string) []netip.Addr {
	var out []netip.Addr
	for s := range strings.FieldsSeq(list) {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

const (
	v6a, v6b, v6c = "2001:db8::1", "2001:db8::2", "2001:db8::3"
	v4a, v4b      = "192.0.2.1", "192.0.2.2"
)

func TestMemoryOrders(t *testing.T) {
	const host = "model.test"
	all := strings.Join([]string{v6a, v6b, v4a, v4b}, " ")
	tests := []struct {
		name string
		past func(m *Memory, pass func(time.Duration))
		in   string
		want string
	}{
		{"families take turns", func(*Memory, func(time.Duration)) {}, all, v6a + " " + v4a + " " + v6b + " " + v4b},
		{"the winner and its family first", func(m *Memory, pass func(time.Duration)) { m.connected(host, addrs(v4b)[0], time.Millisecond) }, all, v4b + " " + v6a + " " + v4a + " " + v6b},
		{"but not for ever", func(m *Memory, pass func(time.Duration)) {
			m.connected(host, addrs(v4b)[0], time.Millisecond)
			pass(winnerFor)
		}, all, v6a + " " + v4a + " " + v6b + " " + v4b},
		{"what failed goes last", func(m *Memory, pass func(time.Duration)) { m.Failed(host, addrs(v6a)[0]) }, all, v6b + " " + v4a + " " + v4b + " " + v6a},
		{"and is forgiven", func(m *Memory, pass func(time.Duration)) {
			m.Failed(host, addrs(v6a)[0])
			pass(shunMin)
		}, all, v6a + " " + v4a + " " + v6b + " " + v4b},
		{"later if it fails again", func(m *Memory, pass func(time.Duration)) {
			m.Failed(host, addrs(v6a)[0])
			pass(shunMin)
			m.Failed(host, addrs(v6a)[0])
			pass(shunMin)
		}, all, v6b + " " + v4a + " " + v4b + " " + v6a},
		{"at once if it connects", func(m *Memory, pass func(time.Duration)) {
			m.Failed(host, addrs(v6a)[0])
			m.connected(host, addrs(v6a)[0], time.Millisecond)
		}, all, v6a + " " + v4a + " " + v6b + " " + v4b},
		{"all failed: the one that did so first", func(m *Memory, pass func(time.Duration)) {
			m.Failed(host, addrs(v4a)[0])
			pass(time.Second)
			m.Failed(host, addrs(v6a)[0])
		}, v6a + " " + v4a, v4a + " " + v6a},
		{"another host has another past", func(m *Memory, pass func(time.Duration)) { m.Failed("other.test", addrs(v6a)[0]) }, v6a + " " + v4a, v6a + " " + v4a},
		{"the same address once, mapped or not", func(*Memory, func(time.Duration)) {}, v4a + " ::ffff:" + v4a + " " + v4a, v4a},
		{"forgotten with the network", func(m *Memory, pass func(time.Duration)) { m.Failed(host, addrs(v6a)[0]); m.Forget() }, v6a + " " + v4a, v6a + " " + v4a},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := new(Memory)
				tt.past(m, time.Sleep)
				if got, _ := m.order(host, addrs(tt.in)); !slices.Equal(got, addrs(tt.want)) {
					t.Errorf("order %v, want %s", got, tt.want)
				}
			})
		})
	}
}

// The stagger follows the host's own time to connect, within the bounds of RFC
// 8305.
func TestStaggerIsLearned(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: stagger, time.Millisecond: staggerMin, 90 * time.Millisecond: 180 * time.Millisecond, 3 * time.Second: staggerMax,
	} {
		m := new(Memory)
		if took > 0 {
			m.connected("model.test", addrs(v4a)[0], took)
		}
		if _, got := m.order("model.test", addrs(v4a)); got != want {
			t.Errorf("connecting takes %v: stagger %v, want %v", took, got, want)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(Memory)
		for i := range 2 * maxHosts {
			m.connected(fmt.Sprintf("host%d.test", i), addrs(v4a)[0], time.Millisecond)
			time.Sleep(time.Millisecond)
		}
		if len(m.hosts) != maxHosts || m.hosts["host0.test"] != nil {
			t.Errorf("%d hosts, the first is there: %v", len(m.hosts), m.hosts["host0.test"] != nil)
		}
		for i := range 2 * maxAddresses {
			m.Failed("host.test", netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
		}
		if n := len(m.hosts["host.test"].failed); n != maxAddresses {
			t.Errorf("%d addresses of one host", n)
		}
	})
}

// A broken family costs the first dial a stagger, and those after it nothing.
func TestBrokenFamilyCostsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return addrs(v6a + " " + v6b + " " + v6c + " " + v4a), nil
		}})
		var asked atomic.Int32
		d.open = func(ctx context.Context, _, addr string) (net.Conn, error) {
			asked.Add(1)
			if netip.MustParseAddrPort(addr).Addr().Is6() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return &tracked{addr: addr, closed: new(list)}, nil
		}
		for i, want := range []time.Duration{stagger, 0, 0} {
			start := time.Now()
			asked.Store(0)
			if _, err := d.DialContext(t.Context(), "tcp", "model.test:443"); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took != want {
				t.Errorf("dial %d took %v, want %v", i, took, want)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("the last dial asked %d addresses", n)
		}
		synctest.Wait()
	})
}

// An attempt that was given up because another one won says nothing about its
// address, and neither does one that the caller gave up.
func TestGivingUpIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(Memory)
		d := New(Config{Memory: m, Resolve: func(context.Context, string) ([]netip.Addr, error) { return addrs(v6a), nil }})
		d.open = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNABORTED}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.DialContext(ctx, "tcp", "model.test:443"); err == nil {
			t.Fatal("connected")
		}
		synctest.Wait()
		if p := m.hosts["model.test"]; p != nil && len(p.failed) > 0 {
			t.Errorf("failed: %v", p.failed)
		}
	})
}
