// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A script is a peer that sends and expects frame by frame. It reads only when
// it is asked to, from the other end of a connection in memory.
type script struct {
	t    *testing.T
	c    *Conn
	nc   *netlab.MemConn
	fr   *http2.Framer
	hbuf bytes.Buffer
	enc  *hpack.Encoder
}

// bubble runs a test on a fake clock.
func bubble(t *testing.T, cfg Config, delay time.Duration, settings []http2.Setting, run func(s *script)) {
	t.Helper()
	bubbleOver(t, func(nc net.Conn) net.Conn { return nc }, cfg, delay, settings, run)
}

// bubbleOver is bubble with something between the client and its connection.
func bubbleOver(t *testing.T, over func(net.Conn) net.Conn, cfg Config, delay time.Duration, settings []http2.Setting, run func(s *script)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, server := netlab.Pipe(delay)
		c, err := New(over(client), cfg)
		if err != nil {
			t.Fatal(err)
		}
		s := &script{t: t, c: c, nc: server, fr: http2.NewFramer(server, server)}
		s.fr.AllowIllegalWrites = true
		s.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		s.enc = hpack.NewEncoder(&s.hbuf)
		defer func() {
			_ = c.Close()
			_ = server.Close()
			if n := c.InFlight(); n != 0 {
				t.Errorf("%d requests in flight after Close", n)
			}
		}()
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(server, preface); err != nil || string(preface) != http2.ClientPreface {
			t.Fatalf("preface %q, %v", preface, err)
		}
		if settings != nil {
			s.do(s.fr.WriteSettings(settings...))
			s.do(s.fr.WriteSettingsAck())
			if err := c.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		run(s)
	})
}

// pass lets time pass on the bubble's clock.
func (s *script) pass(d time.Duration) { <-time.NewTimer(d).C }

// common are settings of an ordinary peer.
func common(more ...http2.Setting) []http2.Setting {
	return append([]http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 100}}, more...)
}

func (s *script) do(err error) {
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		s.t.Helper()
		s.t.Logf("peer: %v", err)
	}
}

// next is the next frame that is not about settings or windows. nil is the end.
func (s *script) next() http2.Frame {
	s.t.Helper()
	for {
		f := s.any()
		switch f := f.(type) {
		case *http2.SettingsFrame, *http2.WindowUpdateFrame:
			continue
		default:
			return f
		}
	}
}

func (s *script) any() http2.Frame {
	f, err := s.fr.ReadFrame()
	if err != nil {
		return nil
	}
	return f
}

// want reads on to the next frame of that type.
func want[F http2.Frame](s *script) F {
	s.t.Helper()
	for {
		f := s.any()
		if f == nil {
			var none F
			s.t.Fatalf("the connection ended, want %T", none)
		}
		if f, ok := f.(F); ok {
			return f
		}
	}
}

// A call is a request under way.
type call struct {
	resp *http.Response
	err  error
	done chan struct{}
}

// wait returns the outcome once it is there.
func (c *call) wait() (*http.Response, error) {
	<-c.done
	return c.resp, c.err
}

func (s *script) get(ctx context.Context) *call { return s.send(s.request(ctx, "GET", nil)) }

func (s *script) request(ctx context.Context, method string, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, "https://api.test/v1", body)
	if err != nil {
		s.t.Fatal(err)
	}
	return req
}

func (s *script) send(req *http.Request) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.resp, c.err = s.c.RoundTrip(req)
	}()
	return c
}

// fields writes a field block of "name: value" lines.
func (s *script) fields(id uint32, end bool, lines ...string) {
	s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: end, EndHeaders: true, BlockFragment: s.block(lines...)}))
}

func (s *script) block(lines ...string) []byte {
	s.hbuf.Reset()
	for _, l := range lines {
		name, value, _ := strings.Cut(l[1:], ": ")
		s.do(s.enc.WriteField(hpack.HeaderField{Name: l[:1] + name, Value: value}))
	}
	return s.hbuf.Bytes()
}

func (s *script) data(id uint32, end bool, p string) { s.do(s.fr.WriteData(id, end, []byte(p))) }

// open starts a GET and returns once its head has arrived.
func (s *script) open() (*call, uint32) {
	s.t.Helper()
	c := s.get(s.t.Context())
	return c, want[*http2.MetaHeadersFrame](s).StreamID
}
