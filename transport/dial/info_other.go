// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dial

import "net"

// ReadInfo has nothing to read outside Linux.
func ReadInfo(net.Conn) (Info, bool) { return Info{}, false }

// Keepalive of a connection.
const (
	keepIdle     = 30 // seconds
	keepInterval = 10
	keepCount    = 6
)

// Probe cannot be done outside Linux.
func Probe(net.Conn) bool { return false }

// Unprobe has nothing to end.
func Unprobe(net.Conn) {}
