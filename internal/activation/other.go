// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package activation

import (
	"context"
	"net"
	"os/exec"
)

// Sockets are those that this process was started with: none here.
type Sockets struct{}

// Inherit finds nothing.
func Inherit(func(string) (string, bool), func(string) error) (*Sockets, error) { return nil, nil }

// Listener finds nothing.
func (s *Sockets) Listener(string) net.Listener { return nil }

// Packets finds nothing.
func (s *Sockets) Packets(string) net.PacketConn { return nil }

// Foreign knows nothing.
func (s *Sockets) Foreign(any) bool { return false }

// Finish has nothing to do.
func (s *Sockets) Finish() error { return nil }

// Ready has nobody to tell.
func (s *Sockets) Ready() error { return nil }

// Close has nothing to close.
func (s *Sockets) Close() error { return nil }

// Succeed fails.
func Succeed(context.Context, *exec.Cmd, []Passed, []byte) error { return ErrUnsupported }

// State is nothing.
func (s *Sockets) State() []byte { return nil }
