// SPDX-License-Identifier: Apache-2.0

//go:build unix

package activation

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	firstFD  = 3        // SD_LISTEN_FDS_START
	maxFDs   = 128      // far above what a configuration lists
	maxState = 16 << 20 // bytes; far above what stands over a configuration
)

// Variables of the environment. The successor's descriptors begin with the pipe on
// which it says that it is ready; the value has a letter for each socket behind it.
const (
	handoverEnv   = "WARMWIRE_HANDOVER"
	stateEnv      = "WARMWIRE_HANDOVER_STATE" // the descriptor to read the state from
	letterOwn     = 'o'                       // made by a Warmwire: the last one removes its file
	letterForeign = 's'                       // of systemd, which keeps it
)

// Sockets are those that this process was started with.
type Sockets struct {
	left    []*socket // nobody has asked for them yet
	taken   []*socket
	ready   *os.File // where the process before waits; nil: there is none
	systemd bool
	state   []byte
}

// A socket is one descriptor.
type socket struct {
	addr     net.Addr
	listener net.Listener   // or
	packets  net.PacketConn // this
	foreign  bool           // systemd keeps it
}

// Inherit takes the sockets that the environment names, and forgets the variables so
// that no child takes them again.
func Inherit(lookup func(string) (string, bool), unset func(string) error) (*Sockets, error) {
	defer func() {
		for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID", handoverEnv, stateEnv} {
			_ = unset(name) // fails for names that are none
		}
	}()
	if letters, ok := lookup(handoverEnv); ok {
		s, err := inherited(letters)
		if err != nil {
			return nil, err
		}
		if fd, ok := lookup(stateEnv); ok {
			if s.state, err = readState(fd, firstFD+1+len(letters)); err != nil {
				return nil, errors.Join(fmt.Errorf("handover: %s: %w", stateEnv, err), s.Close())
			}
		}
		return s, nil
	}
	pid, _ := lookup("LISTEN_PID")
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil // none, or for somebody else
	}
	count, _ := lookup("LISTEN_FDS")
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxFDs {
		return nil, fmt.Errorf("LISTEN_FDS=%q: not a number from 0 to %d", count, maxFDs)
	}
	s := &Sockets{systemd: true}
	for fd := firstFD; fd < firstFD+n; fd++ {
		if err := s.add(fd, true); err != nil {
			return nil, errors.Join(fmt.Errorf("socket activation: descriptor %d: %w", fd, err), s.Close())
		}
	}
	return s, nil
}

// inherited takes what Succeed has passed on.
func inherited(letters string) (*Sockets, error) {
	if len(letters) > maxFDs {
		return nil, fmt.Errorf("%s: more than %d sockets", handoverEnv, maxFDs)
	}
	unix.CloseOnExec(firstFD)
	s := &Sockets{ready: os.NewFile(firstFD, "ready")}
	for i, letter := range []byte(letters) {
		fd := firstFD + 1 + i
		if letter != letterOwn && letter != letterForeign {
			return nil, errors.Join(fmt.Errorf("%s: unknown letter %q", handoverEnv, letter), s.Close())
		}
		if err := s.add(fd, letter == letterForeign); err != nil {
			return nil, errors.Join(fmt.Errorf("handover: descriptor %d: %w", fd, err), s.Close())
		}
	}
	return s, nil
}

// readState reads what the process before tells, from the descriptor behind the last
// socket.
func readState(text string, want int) ([]byte, error) {
	if text != strconv.Itoa(want) {
		return nil, fmt.Errorf("%q, where it must be %d", text, want)
	}
	unix.CloseOnExec(want)
	f := os.NewFile(uintptr(want), "state")
	if f == nil {
		return nil, unix.EBADF
	}
	defer f.Close()
	state, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err == nil && len(state) > maxState {
		err = fmt.Errorf("more than %d bytes", maxState)
	}
	return state, err
}

// State is what the process before this one has told with [Succeed], nil for nothing.
func (s *Sockets) State() []byte {
	if s == nil {
		return nil
	}
	return s.state
}

// add makes a Go socket of a descriptor, which it closes.
func (s *Sockets) add(fd int, foreign bool) error {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "inherited")
	if f == nil {
		return unix.EBADF
	}
	defer f.Close()
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return err
	}
	sock := &socket{foreign: foreign}
	switch kind {
	case unix.SOCK_STREAM:
		if sock.listener, err = net.FileListener(f); err != nil {
			return err
		}
		sock.addr = sock.listener.Addr()
	case unix.SOCK_DGRAM:
		if sock.packets, err = net.FilePacketConn(f); err != nil {
			return err
		}
		sock.addr = sock.packets.LocalAddr()
	default:
		return fmt.Errorf("neither a stream nor a datagram socket")
	}
	s.left = append(s.left, sock)
	return nil
}

// Listener returns the listener for address, host:port or unix:/path, nil if this
// process was started without it. It is the caller's from here on.
func (s *Sockets) Listener(address string) net.Listener {
	sock := s.take(func(sock *socket) bool { return sock.listener != nil && matches(address, sock.addr) })
	if sock == nil {
		return nil
	}
	return sock.listener
}

// Packets is as Listener, for UDP.
func (s *Sockets) Packets(address string) net.PacketConn {
	sock := s.take(func(sock *socket) bool { return sock.packets != nil && matches(address, sock.addr) })
	if sock == nil {
		return nil
	}
	return sock.packets
}

func (s *Sockets) take(fits func(*socket) bool) *socket {
	if s == nil {
		return nil
	}
	for i, sock := range s.left {
		if fits(sock) {
			s.left = append(s.left[:i:i], s.left[i+1:]...)
			s.taken = append(s.taken, sock)
			return sock
		}
	}
	return nil
}

// Foreign says whether systemd keeps a socket that was taken: it stays when all
// processes have closed it.
func (s *Sockets) Foreign(taken any) bool {
	if s == nil {
		return false
	}
	for _, sock := range s.taken {
		if sock.foreign && (sock.listener != nil && sock.listener == taken || sock.packets != nil && sock.packets == taken) {
			return true
		}
	}
	return false
}

// Finish ends the taking. A socket of systemd that nobody asked for is an error:
// whoever connects to it would wait for ever. One of the process before is closed:
// its address has left the configuration.
func (s *Sockets) Finish() error {
	if s == nil {
		return nil
	}
	var err error
	for _, sock := range s.left {
		if sock.foreign && s.systemd {
			err = errors.Join(err, fmt.Errorf("systemd passes a socket on %s %s, which is no listen.address, admin.address or dns.listen of the configuration", sock.addr.Network(), sock.addr))
		}
	}
	return errors.Join(err, s.closeLeft())
}

// Ready tells the process before that this one serves, and takes over its duties. It
// does nothing if there was none.
func (s *Sockets) Ready() error {
	if s == nil || s.ready == nil {
		return nil
	}
	_, err := s.ready.Write([]byte{1})
	err = errors.Join(err, s.ready.Close())
	s.ready = nil
	for _, sock := range s.taken {
		if u, ok := sock.listener.(*net.UnixListener); ok && !sock.foreign {
			u.SetUnlinkOnClose(true)
		}
	}
	return err
}

// Close closes what was not taken, and the way to the process before, which then
// knows that this one failed.
func (s *Sockets) Close() error {
	if s == nil {
		return nil
	}
	err := s.closeLeft()
	if s.ready != nil {
		err = errors.Join(err, s.ready.Close())
		s.ready = nil
	}
	return err
}

func (s *Sockets) closeLeft() error {
	var err error
	for _, sock := range s.left {
		if sock.listener != nil {
			err = errors.Join(err, sock.listener.Close())
		} else {
			err = errors.Join(err, sock.packets.Close())
		}
	}
	s.left = nil
	return err
}
