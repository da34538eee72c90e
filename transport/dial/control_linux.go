// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent bytes may stay unacknowledged before the kernel
// gives the connection up: well above any outage a stream should survive, well
// below the quarter of an hour that Linux waits by itself.
const userTimeout = 60_000 // ms

// control sets what net.Dialer has no field for. An old kernel without an option
// still connects.
func control(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout)
	})
}
