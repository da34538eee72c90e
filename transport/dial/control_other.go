// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dial

import "syscall"

// control has nothing to set outside Linux.
func control(_, _ string, _ syscall.RawConn) error { return nil }
