// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package peer

import "net"

// Look reports that the peer cannot be seen on this system.
func Look(net.Conn) (Info, error) { return Info{}, nil }

// Left reports that it is unknown on this system whether the peer has left.
func Left(net.Conn) (left, known bool) { return false, false }
