// SPDX-License-Identifier: Apache-2.0

//go:build unix

package activation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Succeed starts cmd with the sockets, and returns once it has said that it is
// ready. When ctx ends before, or cmd does, it is killed and gone, and the error says
// so. cmd needs Path, Args and Env; what it writes goes where cmd says. On success the
// caller may wait for cmd.
func Succeed(ctx context.Context, cmd *exec.Cmd, passed []Passed) error {
	ready, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer tell.Close()
	cmd.ExtraFiles = []*os.File{tell}
	letters := ""
	for _, p := range passed {
		f, err := duplicate(p.Socket)
		if err != nil {
			return fmt.Errorf("duplicate a listener: %w", err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		letter := letterOwn
		if p.Foreign {
			letter = letterForeign
		}
		letters += string(letter)
	}
	cmd.Env = append(slices.DeleteFunc(slices.Clone(cmd.Env), notForSuccessor), handoverEnv+"="+letters)
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = tell.Close() // else its end would not be seen
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(aLongTimeAgo) })
	defer stop()
	if n, err := ready.Read(make([]byte, 1)); n != 1 {
		_ = cmd.Process.Kill() // it may have ended already
		wait := cmd.Wait()
		if ctx.Err() != nil {
			return fmt.Errorf("the successor was not ready in time: %w", context.Cause(ctx))
		}
		return fmt.Errorf("the successor ended before it was ready: %w", errors.Join(wait, notEOF(err)))
	}
	return nil
}

// notForSuccessor are variables that name another process.
func notForSuccessor(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return strings.HasPrefix(name, "LISTEN_") || name == "WATCHDOG_PID" || name == handoverEnv
}

// duplicate makes another descriptor of a socket. It goes to the child as it is,
// since os.File.Fd would take a socket of net out of non-blocking mode, for all who
// share it: the test of Succeed looks.
func duplicate(c syscall.Conn) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	return os.NewFile(uintptr(fd), "passed"), nil
}
