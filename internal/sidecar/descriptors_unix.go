// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sidecar

import "golang.org/x/sys/unix"

// descriptorLimit is how many file descriptors this process may have.
func descriptorLimit() (uint64, bool) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	return uint64(l.Cur), true // signed on some systems
}
