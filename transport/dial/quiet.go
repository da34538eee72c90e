// SPDX-License-Identifier: Apache-2.0

package dial

import "net"

// Quiet ends the kernel's own keepalive probes of a connection, for an owner that keeps
// it alive by itself and wants its silences to be silent. It says whether it could.
func Quiet(c net.Conn) bool {
	for {
		if t, ok := c.(interface{ SetKeepAlive(bool) error }); ok {
			return t.SetKeepAlive(false) == nil
		}
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return false
		}
		c = w.NetConn()
	}
}
