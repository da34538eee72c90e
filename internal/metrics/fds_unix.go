// SPDX-License-Identifier: Apache-2.0

//go:build unix

package metrics

import (
	"os"

	"golang.org/x/sys/unix"
)

// fdsInUse counts the entries of the process's descriptor folder, where there is
// one.
func fdsInUse() float64 {
	d, err := os.Open("/dev/fd")
	if err != nil {
		return -1
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return -1
	}
	return float64(len(names) - 1) // less the one that looked
}

func fdsLimit() float64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return -1
	}
	return float64(l.Cur)
}
