// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/transport/fault"
)

const farDelay = 10 * time.Millisecond

// A far server is on the other host of a lab.
type far struct {
	lab  *netlab.Lab
	e    *Endpoint
	addr netip.AddrPort
	cfg  Config
	next chan string // what each open stream says next
}

func newFar(t *testing.T, lc netlab.Config, cfg Config) *far {
	t.Helper()
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	lab, err := netlab.New(t.Context(), lc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	pc, err := lab.Server.ListenPacket("udp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	server, client := testTLS()
	f := &far{lab: lab, cfg: cfg, next: make(chan string)}
	f.addr = netip.AddrPortFrom(lab.Server.Addr4(), uint16(pc.LocalAddr().(*net.UDPAddr).Port))
	f.cfg.TLS = client
	serve(t, pc, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case word, more := <-f.next:
				if !more {
					return
				}
				_, _ = io.WriteString(w, word)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}), server, &quic.Config{MaxIdleTimeout: 5 * time.Minute})
	f.e = endpoint(t, lab.Client.ListenPacket)
	return f
}

// open starts a stream and reads what it says first.
func (f *far) open(t *testing.T) (*Conn, *http.Response) {
	t.Helper()
	c := dial(t, f.e, f.addr, f.cfg)
	resp := do(t, c, request(t, "GET", "/", nil).WithContext(t.Context()))
	hear(t, resp, "hello")
	return c, resp
}

func hear(t *testing.T, resp *http.Response, want string) {
	t.Helper()
	limit := time.AfterFunc(10*time.Second, func() { _ = resp.Body.Close() })
	defer limit.Stop()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
}

// socketOf says where the connection is. quic-go's LocalAddr would tell what is sent by, but
// does not guard itself against migration.
func socketOf(c *Conn) *socket {
	c.migrating.Lock()
	defer c.migrating.Unlock()
	return c.on
}

// The network changes under an open stream: the connection moves to a new socket,
// and the stream goes on. Endpoint and server see one connection all the time.
func TestMigration(t *testing.T) {
	link := netlab.Link{Delay: farDelay}
	f := newFar(t, netlab.Config{Up: link, Down: link}, Config{})
	c, resp := f.open(t)
	if err := c.Migrate(t.Context()); !errors.Is(err, ErrMoved) {
		t.Errorf("Migrate to where it is: %v", err)
	}
	for range 3 {
		before := socketOf(c)
		if err := f.lab.ChangeClientAddress(); err != nil {
			t.Fatal(err)
		}
		if err := f.e.Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.next <- "on"
		hear(t, resp, "on")
		if socketOf(c) == before {
			t.Error("it is on its old socket")
		}
		if _, err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(f.next)
	if got := readAll(t, resp); got != "" {
		t.Errorf("%q", got)
	}
	_ = c.Close()
	eventually(t, "no old socket, no connection and no user is left", func() bool {
		f.e.mu.Lock()
		defer f.e.mu.Unlock()
		users := 0
		for _, s := range f.e.now {
			if s != nil {
				users += s.refs
			}
		}
		return len(f.e.old) == 0 && len(f.e.conns) == 0 && users == 0
	})
}

// Also without moving: sockets that are bound to no address follow the kernel's
// routes, and the server follows the packets.
func TestAddressChangeWithoutMigration(t *testing.T) {
	link := netlab.Link{Delay: farDelay}
	f := newFar(t, netlab.Config{Up: link, Down: link}, Config{})
	c, resp := f.open(t)
	if err := f.lab.ChangeClientAddress(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.next <- "on"
	hear(t, resp, "on")
	_ = resp.Body.Close()
}

// A NAT that forgets its flows: QUIC goes on from what seems another port.
func TestNATForgets(t *testing.T) {
	link := netlab.Link{Delay: farDelay}
	f := newFar(t, netlab.Config{Up: link, Down: link, NAT: netlab.NAT{On: true}}, Config{})
	c, resp := f.open(t)
	if err := f.lab.ForgetFlows(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.next <- "on"
	hear(t, resp, "on")
	_ = resp.Body.Close()
}

// On a network that blocks UDP a move fails within its time and changes nothing; a
// PING says that nobody answers; and once the owner leaves, the stream is cut for
// all to see.
func TestUDPBlocked(t *testing.T) {
	link := netlab.Link{Delay: farDelay}
	f := newFar(t, netlab.Config{Up: link, Down: link}, Config{})
	c, resp := f.open(t)
	if err := f.lab.Outage(time.Minute); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := f.e.Move(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Move = %v", err)
	}
	heard := c.LastReceived()
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("PING = %v", err)
	}
	if got := c.LastReceived(); !got.Equal(heard) {
		t.Errorf("something was heard %v later", got.Sub(heard))
	}
	if c.Err() != nil {
		t.Errorf("the connection gave up: %v", c.Err())
	}
	cfg := f.cfg
	cfg.HandshakeTimeout = 300 * time.Millisecond
	if _, err := f.e.Dial(t.Context(), f.addr, cfg); faultOf(t, err).Kind != kindTimeout {
		t.Errorf("Dial = %v", err)
	}
	c.Abandon(faultError)
	_, err := io.ReadAll(resp.Body)
	if got := faultOf(t, err); got.Kind != kindSilent || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v", got)
	}
}

var faultError = fault.Unsent(kindSilent, "left")

// A silence longer than the idle time-out ends the connection with that word, and
// PINGs keep it.
func TestIdleTimeout(t *testing.T) {
	link := netlab.Link{Delay: farDelay}
	f := newFar(t, netlab.Config{Up: link, Down: link}, Config{IdleTimeout: 400 * time.Millisecond})
	c, resp := f.open(t)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 10 {
		<-tick.C
		if _, err := c.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	_, err := io.ReadAll(resp.Body)
	if got := faultOf(t, err); got.Kind != kindSilent || !got.Expired || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v", got)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 3*time.Second {
		t.Errorf("after %v", took)
	}
	if err := c.Err(); err == nil || c.InFlight() != 0 {
		t.Errorf("%v, %d in flight", err, c.InFlight())
	}
}

// A path that loses large packets without a word: QUIC finds what passes.
func TestMTUBlackHole(t *testing.T) {
	f := newFar(t, netlab.Config{Up: netlab.Link{Delay: farDelay, MTU: 1280}, Down: netlab.Link{Delay: farDelay}}, Config{})
	c := dial(t, f.e, f.addr, f.cfg)
	big := strings.NewReader(strings.Repeat("x", 200<<10))
	resp := do(t, c, request(t, "POST", "/", big))
	hear(t, resp, "hello") // the server has read it all
	close(f.next)
	if got := readAll(t, resp); got != "" || c.Err() != nil {
		t.Errorf("%q, %v", got, c.Err())
	}
}
