// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent returns how many bytes written to c its peer has not acknowledged.
func unsent(c net.Conn) int { return queued(c, unix.SIOCOUTQ) }

// sioOutQNSD is SIOCOUTQNSD of linux/sockios.h.
const sioOutQNSD = 0x894b

// notSent returns how many of them have not even left: its peer has no room for them.
func notSent(c net.Conn) int { return queued(c, sioOutQNSD) }

func queued(c net.Conn, request uint) int {
	for range 8 { // guess: no sane stack is deeper
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = w.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = raw.Control(func(fd uintptr) {
		if v, err := unix.IoctlGetInt(int(fd), request); err == nil {
			n = v
		}
	})
	return n
}
