// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dial

import (
	"errors"
	"syscall"
)

// control has nothing to set outside Linux.
func control(congestion string) func(_, _ string, _ syscall.RawConn) error {
	return func(_, _ string, _ syscall.RawConn) error {
		if congestion != "" {
			return errors.New("congestion control can be chosen on Linux only")
		}
		return nil
	}
}
