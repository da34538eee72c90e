// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent bytes may stay unacknowledged before the kernel
// gives the connection up: well above any outage a stream should survive, well
// below the quarter of an hour that Linux waits by itself.
const userTimeout = 60_000 // ms

// notSentLowat is how much unsent data the kernel takes from us: what waits in it
// cannot be overtaken by what is more urgent. On a path of 10 Mbit/s this much
// takes 13 ms.
const notSentLowat = 16 << 10 // bytes

// control sets what net.Dialer has no field for. An old kernel without an option
// still connects; a congestion control that was asked for must be there.
func control(congestion string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
			if congestion != "" {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
			}
		}); cerr != nil {
			return cerr
		}
		if err != nil {
			return fmt.Errorf("congestion control %q: %w (sysctl net.ipv4.tcp_available_congestion_control names those there are)", congestion, err)
		}
		return nil
	}
}
