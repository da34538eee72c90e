// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// ReadInfo reads what the kernel knows of the path of a connection: TCP_INFO. ok
// is false where there is none, as for a connection that is not TCP, or closed. A
// wrapped connection is found by NetConn.
func ReadInfo(c net.Conn) (info Info, ok bool) {
	ti, err := tcpInfo(c)
	if err != nil {
		return Info{}, false
	}
	micro := func(v uint32) time.Duration { return time.Duration(v) * time.Microsecond }
	return Info{
		RTT: micro(ti.Rtt), RTTVar: micro(ti.Rttvar), MinRTT: micro(ti.Min_rtt), RTO: micro(ti.Rto),
		Retransmits: ti.Total_retrans, Backoffs: ti.Backoff, Disordered: ti.Rcv_ooopack, Segments: ti.Data_segs_in, Lost: ti.Lost, Unacked: ti.Unacked,
		DeliveryRate: ti.Delivery_rate, LastHeard: time.Duration(min(ti.Last_data_recv, ti.Last_ack_recv)) * time.Millisecond,
		LastAcked: time.Duration(ti.Last_ack_recv) * time.Millisecond,
	}, true
}

// Ended asks the kernel whether the peer has ended a connection, or it was lost, even if
// nobody has read that yet. Where the kernel cannot say, the answer is no.
func Ended(c net.Conn) bool {
	ti, err := tcpInfo(c)
	if err != nil {
		return errors.Is(err, net.ErrClosed)
	}
	return ti.State != unix.BPF_TCP_ESTABLISHED
}

// tcpInfo asks the kernel. Its error matches [net.ErrClosed] if we have closed c.
func tcpInfo(c net.Conn) (ti *unix.TCPInfo, err error) {
	raw, ok := rawOf(c)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if cerr := raw.Control(func(fd uintptr) {
		ti, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); cerr != nil {
		return nil, cerr
	}
	return ti, err
}

// Keepalive of a connection (RFC 9293 §3.8.4): how long it may be silent before
// the kernel probes it by itself, and how often it does while nothing answers.
// TCP_USER_TIMEOUT, not a count, ends a connection whose probes stay unanswered.
const (
	keepIdle     = 30 // seconds
	keepInterval = 1
	keepCount    = 127
)

// Probe makes the kernel send a keepalive probe at once, and then each second
// until Unprobe; whether the peer answered is seen in [Info.LastHeard]. It is the
// probe of protocols that have none of their own, and of no concern to the peer's
// program. It says whether the connection can be probed.
func Probe(c net.Conn) bool { return setKeepIdle(c, 1) }

// Unprobe ends the probing.
func Unprobe(c net.Conn) { setKeepIdle(c, keepIdle) }

// setKeepIdle sets TCP_KEEPIDLE, upon which the kernel probes at once if the
// connection has been silent for that long already.
func setKeepIdle(c net.Conn, seconds int) bool {
	raw, ok := rawOf(c)
	if !ok {
		return false
	}
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds)
	}); cerr != nil {
		return false
	}
	return err == nil
}
