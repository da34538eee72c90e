// SPDX-License-Identifier: Apache-2.0

// Package peer says who is at the other end of a local connection, and whether
// that process still holds it.
//
// On Linux a TCP connection with both ends in this network namespace is looked
// up in the kernel's socket table (sock_diag, one exact lookup of the peer's own
// socket); a Unix socket is asked for its peer credentials. On other systems,
// and for peers the kernel cannot show, the answer is "unknown": nothing is
// guessed, and callers must treat unknown as not trusted and a FIN as leaving.
//
// It refuses to read /proc, to scan tables and to name processes: a uid, a gid and a
// socket inode are all it tells. It keeps no state, starts nothing and opens one
// netlink socket for the length of a call. All functions may be called at once
// from anywhere, also while the connection is read and written.
package peer

import "net"

// Info is what the kernel says about the socket at the other end.
type Info struct {
	Seen   bool   // the kernel could show the peer; the other fields mean nothing without it
	Owned  bool   // a process still holds the socket (inode != 0)
	UID    uint32 // user of the peer: its socket's owner (TCP), or the process that connected (Unix)
	GID    uint32 // its group (Unix)
	HasGID bool   // the kernel could tell the group
	Inode  uint32 // of the peer's socket; 0 for Unix sockets and for a socket that nobody holds
	Unread int    // bytes that the peer's kernel has for its process (TCP)
	State  uint8  // TCP state number of the peer's socket, as in tcp(7); 0 for Unix sockets
}

// unwrap follows NetConn methods (as of tls.Conn) to the innermost connection.
func unwrap(c net.Conn) net.Conn {
	for range 8 { // guess: no sane stack is deeper; ends a wrapper that returns itself
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		inner := w.NetConn()
		if inner == nil {
			break
		}
		c = inner
	}
	return c
}
