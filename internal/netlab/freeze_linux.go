// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Freeze stops a child process, as the sleep of a laptop does, and returns once
// it stands still. The world goes on: peers send, NATs forget, clocks run. thaw
// wakes it up.
func Freeze(child *os.Process) (thaw func() error, err error) {
	if err := child.Signal(unix.SIGSTOP); err != nil {
		return nil, fmt.Errorf("netlab: freeze process %d: %w", child.Pid, err)
	}
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, child.Pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return nil, fmt.Errorf("netlab: wait until process %d stands still: %w", child.Pid, err)
		}
	}
	if info.Code != cldStopped {
		return nil, fmt.Errorf("netlab: process %d ended instead of standing still", child.Pid)
	}
	return func() error {
		if err := child.Signal(unix.SIGCONT); err != nil {
			return fmt.Errorf("netlab: thaw process %d: %w", child.Pid, err)
		}
		return nil
	}, nil
}

// cldStopped is the kernel's CLD_STOPPED: the child was stopped by a signal.
const cldStopped = 5
