// SPDX-License-Identifier: Apache-2.0

//go:build unix

package testenv

import (
	"syscall"
)

// SmallReceiveBuffer is the Control of a net.Dialer that gives a socket a receive
// buffer of 16 KiB before it connects, so that the peer soon has to wait for its reader.
func SmallReceiveBuffer(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 8<<10) // the kernel doubles it
	}); cerr != nil {
		return cerr
	}
	return err
}
