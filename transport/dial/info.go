// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"net"
	"syscall"
	"time"
)

// Info is the kernel's view of the path of one connection.
type Info struct {
	RTT, RTTVar  time.Duration // smoothed round trip and its variation (RFC 6298)
	MinRTT       time.Duration
	RTO          time.Duration // present retransmission time-out
	Retransmits  uint32        // segments, since the connection began
	Backoffs     uint8         // time-outs in a row that were not answered
	Disordered   uint32        // segments that came before earlier ones, since the connection began
	Segments     uint32        // that came with data, since the connection began
	Lost         uint32        // segments taken for lost now
	Unacked      uint32        // segments on their way
	DeliveryRate uint64        // bytes a second, lately
	LastHeard    time.Duration // since the last data or acknowledgement came
	LastAcked    time.Duration // since the last acknowledgement came, of data or of a probe
}

func rawOf(c net.Conn) (syscall.RawConn, bool) {
	for {
		if sc, ok := c.(syscall.Conn); ok {
			raw, err := sc.SyscallConn()
			return raw, err == nil
		}
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, false
		}
		c = w.NetConn()
	}
}
