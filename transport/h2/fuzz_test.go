// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/transport/semantics"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzPeer lets the input decide what the peer sends after its SETTINGS: frames,
// legal or not, for a few requests that are under way. Nothing panics, nothing
// hangs, and in the end nothing is in flight.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 0, 2, 1})
	f.Add([]byte{0, 0, 2, 0, 1, 50, 2, 0, 200, 3, 1, 0, 4, 0, 7})
	f.Add([]byte{0, 3, 1, 0, 2, 3, 5, 2, 6, 1, 7, 9, 8, 3, 9, 1, 10, 4, 11, 2})
	f.Add([]byte{4, 1, 0, 0, 1, 6, 0, 3, 12, 7, 1, 13, 0x88, 14, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 400 {
			return
		}
		client, server := netlab.Pipe(0)
		c, err := New(client, Config{Priority: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, server)
		}()
		calls := make(chan struct{}, 3)
		for i := range 3 {
			go func() {
				defer func() { calls <- struct{}{} }()
				fuzzCall(ctx, c, i)
			}()
		}
		newFuzzPeer(server, in).run()
		_ = server.Close()
		for range 3 {
			<-calls
		}
		if ctx.Err() != nil {
			t.Error("a request hung after the peer had closed")
		}
		_ = c.Close()
		<-drained
		if n := c.InFlight(); n != 0 || c.urgent.Load() != 0 || c.bulk.Load() != 0 {
			t.Errorf("in flight %d, open %d and %d", n, c.urgent.Load(), c.bulk.Load())
		}
	})
}

func fuzzCall(ctx context.Context, c *Conn, i int) {
	var body io.Reader
	if i == 1 {
		body = bytes.NewReader(make([]byte, 100_000))
	}
	req, err := http.NewRequestWithContext(semantics.WithClass(ctx, semantics.Class(i)), "POST", "https://api.test/", body)
	if err != nil {
		return
	}
	resp, err := c.RoundTrip(req)
	if err != nil {
		return
	}
	if i == 2 {
		_, _ = io.CopyN(io.Discard, resp.Body, 10)
	} else {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	_ = resp.Body.Close()
}

// A fuzzPeer turns bytes into frames: an operation and its arguments.
type fuzzPeer struct {
	in   *bytes.Reader
	fr   *http2.Framer
	hbuf bytes.Buffer
	enc  *hpack.Encoder
	nc   io.Writer
}

func newFuzzPeer(nc io.ReadWriter, in []byte) *fuzzPeer {
	p := &fuzzPeer{in: bytes.NewReader(in), fr: http2.NewFramer(nc, nil), nc: nc}
	p.fr.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.hbuf)
	return p
}

// arg is the next byte, 0 at the end.
func (p *fuzzPeer) arg() int {
	b, _ := p.in.ReadByte()
	return int(b)
}

// id is mostly one of the requests'.
func (p *fuzzPeer) id() uint32 { return []uint32{1, 3, 5, 0, 7, 2, 1, 3}[p.arg()%8] }

var fuzzFields = [][2]string{
	{":status", "200"}, {":status", "103"}, {":status", "204"}, {":status", "x"}, {"content-length", "5"},
	{"content-length", "-1"}, {"trailer", "x, y"}, {"connection", "close"}, {"X", "y"}, {"x", "a\nb"}, {":path", "/"}, {"x", "y"},
}

func (p *fuzzPeer) block() []byte {
	p.hbuf.Reset()
	for range p.arg() % 4 {
		f := fuzzFields[p.arg()%len(fuzzFields)]
		_ = p.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return p.hbuf.Bytes()
}

func (p *fuzzPeer) run() {
	_ = p.fr.WriteSettings()
	for p.in.Len() > 0 {
		if err := p.step(p.arg() % 16); err != nil {
			return
		}
	}
}

func (p *fuzzPeer) step(op int) error {
	flag := p.arg()
	switch op {
	case 0, 1:
		p.hbuf.Reset()
		_ = p.enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: p.id(), EndStream: flag&1 > 0, EndHeaders: true, BlockFragment: p.hbuf.Bytes()})
	case 2:
		return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: p.id(), EndStream: flag&1 > 0, EndHeaders: flag&2 == 0, BlockFragment: p.block()})
	case 3, 4:
		return p.fr.WriteData(p.id(), flag&1 > 0, make([]byte, p.arg()*64))
	case 5:
		return p.fr.WriteDataPadded(p.id(), flag&1 > 0, make([]byte, p.arg()), make([]byte, p.arg()))
	case 6:
		return p.fr.WriteRSTStream(p.id(), http2.ErrCode(p.arg()%14))
	case 7:
		return p.fr.WriteWindowUpdate(p.id(), uint32(p.arg())<<(flag%24))
	case 8:
		return p.fr.WriteSettings(http2.Setting{ID: http2.SettingID(flag % 10), Val: uint32(p.arg()) << (p.arg() % 25)})
	case 9:
		return p.fr.WritePing(flag&1 > 0, [8]byte{})
	case 10:
		return p.fr.WriteGoAway(p.id(), http2.ErrCode(p.arg()%14), nil)
	case 11:
		return p.fr.WriteContinuation(p.id(), flag&1 > 0, p.block())
	case 12:
		return p.fr.WritePushPromise(http2.PushPromiseParam{StreamID: p.id(), PromiseID: 2, EndHeaders: true})
	case 13:
		return p.fr.WriteRawFrame(http2.FrameType(p.arg()%20), http2.Flags(flag), p.id(), make([]byte, p.arg()%20))
	case 14:
		raw := make([]byte, flag%32)
		_, _ = p.in.Read(raw)
		_, err := p.nc.Write(raw)
		return err
	}
	return p.fr.WritePriority(p.id(), http2.PriorityParam{StreamDep: p.id()})
}
