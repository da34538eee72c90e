// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// established is TCPS_ESTABLISHED of netinet/tcp_fsm.h.
const established = 4

// Ended asks the kernel whether the peer has ended a connection, or it was lost, even if
// nobody has read that yet. Where the kernel cannot say, the answer is no.
func Ended(c net.Conn) bool {
	raw, ok := rawOf(c)
	if !ok {
		return false
	}
	var info *unix.TCPConnectionInfo
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPConnectionInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_CONNECTION_INFO)
	}); cerr != nil {
		return errors.Is(cerr, net.ErrClosed)
	}
	return err == nil && info.State != established
}
