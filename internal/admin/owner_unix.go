// SPDX-License-Identifier: Apache-2.0

//go:build unix

package admin

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner refuses a file that another user can read, or could have put there.
func checkOwner(info fs.FileInfo) error {
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return fmt.Errorf("mode %04o lets other users read or write it: chmod 600 it, and change the token if it was open for long", perm)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user id %d, not to the one that runs Warmwire (%d)", st.Uid, os.Geteuid())
	}
	return nil
}
