// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// listen takes the socket that this process was started with, or binds one.
func (s *Sidecar) listen(address string) (net.Listener, error) {
	ln := s.opt.Sockets.Listener(address)
	if ln == nil {
		var err error
		if ln, err = listen(address); err != nil {
			return nil, err
		}
	}
	if u, ok := ln.(*net.UnixListener); ok && !s.opt.Sockets.Foreign(ln) {
		return newSocketFile(u), nil
	}
	return ln, nil
}

// A socketFile is a Unix socket whose file goes with it, if that still is this socket's:
// where it was removed, another process may have bound its own there, and is reached by it.
type socketFile struct {
	*net.UnixListener
	bound fs.FileInfo // the file; nil = it could not be looked at
	once  sync.Once
}

// newSocketFile looks at the file, which has just been bound or taken over. Its number is
// given to no other file while the socket is open.
func newSocketFile(ln *net.UnixListener) *socketFile {
	bound, _ := os.Lstat(ln.Addr().String())
	return &socketFile{UnixListener: ln, bound: bound}
}

// there says whether apps still reach the socket by its file.
func (f *socketFile) there() bool {
	if f.bound == nil {
		return true
	}
	now, err := os.Lstat(f.Addr().String())
	return err == nil && os.SameFile(f.bound, now)
}

// Close may be called at the same time by who serves and who stops.
func (f *socketFile) Close() error {
	f.once.Do(func() {
		if !f.there() {
			f.SetUnlinkOnClose(false)
		}
	})
	return f.UnixListener.Close()
}

// listen binds host:port or unix:/path. A socket file that nobody listens on any
// more is replaced; one that answers is not ours to take.
func listen(address string) (net.Listener, error) {
	path, unix := strings.CutPrefix(address, "unix:")
	if !unix {
		ln, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("%s is in use: is another Warmwire running? %w", address, err)
		}
		return ln, err
	}
	if err := removeStaleSocket(path); err != nil {
		return nil, err
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// The peer's user is checked for injected credentials; the mode only keeps
	// strangers out early.
	if err := os.Chmod(path, 0o660); err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("%s is in use: another process listens on it", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s exists, and it cannot be told whether it is in use: %w", path, err)
	}
	return os.Remove(path)
}
