// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// A slowPath is a TCP relay that makes its target seem far away, for the demo:
// bytes take half the round trip each way, and a new connection waits for one
// round trip more, which is what a TCP handshake costs.
type slowPath struct {
	ln     net.Listener
	target string
	rtt    time.Duration
}

func newSlowPath(target string, rtt time.Duration) (*slowPath, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &slowPath{ln: ln, target: target, rtt: rtt}, nil
}

func (p *slowPath) addr() string { return p.ln.Addr().String() }

// run relays until ctx ends.
func (p *slowPath) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = p.ln.Close() })
	for {
		c, err := p.ln.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		wg.Go(func() { p.relay(ctx, c) })
	}
}

func (p *slowPath) relay(ctx context.Context, near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { _ = near.Close(); _ = far.Close() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { delayedCopy(far, near, p.rtt/2, p.rtt) })
	wg.Go(func() { delayedCopy(near, far, p.rtt/2, 0) })
	wg.Wait()
}

// A parcel is what was read, and when it is due on the other side.
type parcel struct {
	due  time.Time
	data []byte
}

// delayedCopy passes bytes on after delay, the first ones after first more.
func delayedCopy(dst, src net.Conn, delay, first time.Duration) {
	parcels := make(chan parcel, 1024)
	go func() {
		defer close(parcels)
		for {
			buf := make([]byte, 16<<10)
			n, err := src.Read(buf)
			if n > 0 {
				parcels <- parcel{time.Now().Add(delay + first), buf[:n]}
				first = 0
			}
			if err != nil {
				return
			}
		}
	}()
	for pc := range parcels {
		time.Sleep(time.Until(pc.due))
		if _, err := dst.Write(pc.data); err != nil {
			_ = src.Close() // ends the reader, which closes parcels
			for range parcels {
			}
			break
		}
	}
	if tc, ok := dst.(interface{ CloseWrite() error }); ok {
		_ = tc.CloseWrite()
	}
}
