// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Look reports who is at the other end of c. An error means that the kernel
// could not be asked; a peer that it does not know is no error but a zero Info.
func Look(c net.Conn) (Info, error) {
	switch c := unwrap(c).(type) {
	case *net.TCPConn:
		local, remote, ok := addrs(c)
		if !ok {
			return Info{}, nil
		}
		info, err := lookTCP(remote, local)
		if err != nil {
			return Info{}, fmt.Errorf("look up the peer's socket: %w", err)
		}
		return info, nil
	case *net.UnixConn:
		info, err := lookUnix(c)
		if err != nil {
			return Info{}, fmt.Errorf("read the peer's credentials: %w", err)
		}
		return info, nil
	}
	return Info{}, nil
}

// Left reports, after a FIN was read from c, whether the peer has given its
// socket up (closed it, exited, was killed) or only stopped sending. known is
// false where this cannot be told; treat a FIN as leaving then. A process that
// is inside close(2) may be reported as present for a moment after its FIN
// arrived, so ask again while it matters.
func Left(c net.Conn) (left, known bool) {
	switch c := unwrap(c).(type) {
	case *net.TCPConn:
		local, remote, ok := addrs(c)
		if !ok {
			return false, false
		}
		info, err := lookTCP(remote, local)
		if err != nil {
			return false, false
		}
		if info.Seen {
			return !info.Owned, true
		}
		// Nothing there any more. That proves something only if the socket
		// must have been in our own table.
		return true, remote.Addr().IsLoopback() || remote.Addr() == local.Addr()
	case *net.UnixConn:
		hup, err := hungUp(c)
		return hup, err == nil
	}
	return false, false
}

func addrs(c *net.TCPConn) (local, remote netip.AddrPort, ok bool) {
	l, ok1 := c.LocalAddr().(*net.TCPAddr)
	r, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return local, remote, false
	}
	// A v4-mapped pair is an IPv4 connection in the kernel's table.
	la, ra := l.AddrPort(), r.AddrPort()
	local = netip.AddrPortFrom(la.Addr().Unmap(), la.Port())
	remote = netip.AddrPortFrom(ra.Addr().Unmap(), ra.Port())
	return local, remote, local.IsValid() && remote.IsValid() && local.Addr().Is4() == remote.Addr().Is4()
}

// Layout of the request and the answer, linux/inet_diag.h.
const (
	sizeHeader  = 16 // struct nlmsghdr
	sizeRequest = 56 // struct inet_diag_req_v2
	sizeMessage = 72 // struct inet_diag_msg
	offSockID   = 8  // of inet_diag_sockid in the request
	offID       = 4  // of inet_diag_sockid in the answer
	offUnread   = 56
	offUID      = 64
	offInode    = 68
	stateListen = 10 // TCP_LISTEN
)

// lookTCP asks for the one socket that is bound to own and connected to other.
func lookTCP(own, other netip.AddrPort) (Info, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return Info{}, err
	}
	defer unix.Close(fd)
	var req [sizeHeader + sizeRequest]byte
	fillRequest(&req, own, other)
	if _, err := unix.Write(fd, req[:]); err != nil {
		return Info{}, err
	}
	// The kernel answers inside the write, so the answer is there already.
	var answer [1024]byte
	n, err := unix.Read(fd, answer[:])
	for err == unix.EINTR {
		n, err = unix.Read(fd, answer[:])
	}
	if err != nil {
		return Info{}, err
	}
	return parseAnswer(answer[:n], own.Port(), other.Port())
}

func fillRequest(b *[sizeHeader + sizeRequest]byte, own, other netip.AddrPort) {
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], uint32(len(b)))
	ne.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST) // no dump: an exact lookup
	r := b[sizeHeader:]
	r[0] = unix.AF_INET6
	if own.Addr().Is4() {
		r[0] = unix.AF_INET
	}
	r[1] = unix.IPPROTO_TCP
	ne.PutUint32(r[4:], 0xffffffff) // any state
	id := r[offSockID:]
	binary.BigEndian.PutUint16(id[0:], own.Port())
	binary.BigEndian.PutUint16(id[2:], other.Port())
	copy(id[4:20], own.Addr().AsSlice())
	copy(id[20:36], other.Addr().AsSlice())
	if ifindex, err := strconv.ParseUint(zoneIndex(own.Addr()), 10, 32); err == nil {
		ne.PutUint32(id[36:], uint32(ifindex))
	}
	ne.PutUint64(id[40:], ^uint64(0)) // INET_DIAG_NOCOOKIE
}

// zoneIndex is the number of a link-local address's interface, "" for others.
func zoneIndex(a netip.Addr) string {
	zone := a.Zone()
	if zone == "" {
		return ""
	}
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return strconv.Itoa(ifi.Index)
	}
	return zone
}

var errShort = errors.New("the kernel's answer is cut short")

func parseAnswer(b []byte, ownPort, otherPort uint16) (Info, error) {
	ne := binary.NativeEndian
	if len(b) < sizeHeader+4 {
		return Info{}, errShort
	}
	switch ne.Uint16(b[4:]) {
	case unix.NLMSG_ERROR:
		errno := syscall.Errno(-int32(ne.Uint32(b[sizeHeader:])))
		if errno == unix.ENOENT {
			return Info{}, nil
		}
		return Info{}, errno
	case unix.SOCK_DIAG_BY_FAMILY:
	default:
		return Info{}, fmt.Errorf("unexpected netlink message type %d", ne.Uint16(b[4:]))
	}
	if len(b) < sizeHeader+sizeMessage {
		return Info{}, errShort
	}
	m := b[sizeHeader:]
	// Without a connected socket the lookup falls back to a listener on that
	// port; that one is not our peer.
	if m[1] == stateListen || binary.BigEndian.Uint16(m[offID:]) != ownPort || binary.BigEndian.Uint16(m[offID+2:]) != otherPort {
		return Info{}, nil
	}
	info := Info{Seen: true, State: m[1], UID: ne.Uint32(m[offUID:]), Inode: ne.Uint32(m[offInode:]), Unread: int(ne.Uint32(m[offUnread:]))}
	info.Owned = info.Inode != 0
	return info, nil
}

func lookUnix(c *net.UnixConn) (Info, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Info{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Info{}, err
	}
	if credErr != nil {
		return Info{}, credErr
	}
	if cred.Pid == 0 && cred.Uid == ^uint32(0) {
		return Info{}, nil // no credentials were kept, as for an unconnected socket
	}
	hup, err := hungUp(c)
	if err != nil {
		return Info{}, err
	}
	return Info{Seen: true, Owned: !hup, UID: cred.Uid, GID: cred.Gid, HasGID: true}, nil
}

// hungUp reports whether the other end of a Unix socket is closed, which polls
// as POLLHUP; a peer that only shut down its sending side polls as POLLRDHUP.
func hungUp(c *net.UnixConn) (bool, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var revents int16
	var pollErr error
	if err := raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for {
			_, pollErr = unix.Poll(p, 0)
			if pollErr != unix.EINTR {
				break
			}
		}
		revents = p[0].Revents
	}); err != nil {
		return false, err
	}
	return revents&(unix.POLLHUP|unix.POLLERR) != 0, pollErr
}
