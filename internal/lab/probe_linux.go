// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
)

const (
	probeEvery = 50 * time.Millisecond
	lastProbe  = 300 * time.Millisecond // how long those on their way at the end have
)

// A prober sends packets that come back.
type prober struct {
	out, echo net.PacketConn
	to        net.Addr
	now       func() time.Duration
}

func newProber(l *netlab.Lab, now func() time.Duration) (*prober, error) {
	echo, err := l.Server.ListenPacket("udp4", ":0")
	if err != nil {
		return nil, err
	}
	out, err := l.Client.ListenPacket("udp4", ":0")
	if err != nil {
		_ = echo.Close()
		return nil, err
	}
	to := &net.UDPAddr{IP: l.Server.Addr4().AsSlice(), Port: echo.LocalAddr().(*net.UDPAddr).Port}
	return &prober{out: out, echo: echo, to: to, now: now}, nil
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) PathInfo {
	var info PathInfo
	var sum, squares float64
	var all []time.Duration
	var running sync.WaitGroup
	running.Go(func() { // the far side
		b := make([]byte, 64)
		for {
			n, from, err := p.echo.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = p.echo.WriteTo(b[:n], from)
		}
	})
	running.Go(func() {
		b := make([]byte, 64)
		for {
			n, _, err := p.out.ReadFrom(b)
			if err != nil {
				return
			}
			if n == 8 {
				rtt := float64(int64(p.now()) - int64(binary.BigEndian.Uint64(b)))
				sum, squares = sum+rtt, squares+rtt*rtt
				all = append(all, time.Duration(rtt))
			}
		}
	})
	for sleep(ctx, probeEvery) == nil {
		stamp := binary.BigEndian.AppendUint64(nil, uint64(p.now()))
		if _, err := p.out.WriteTo(stamp, p.to); err == nil {
			info.Sent++
		}
	}
	limit := time.AfterFunc(lastProbe, func() { _ = errors.Join(p.out.Close(), p.echo.Close()) })
	defer limit.Stop()
	running.Wait()
	if got := len(all); got > 0 {
		slices.Sort(all)
		info.P50, info.P95 = quantile(all, 0.5), quantile(all, 0.95)
		mean := sum / float64(got)
		info.RTT = time.Duration(mean)
		info.Spread = time.Duration(math.Sqrt(max(0, squares/float64(got)-mean*mean)))
		info.Lost = 1 - float64(got)/float64(info.Sent)
	}
	return info
}
