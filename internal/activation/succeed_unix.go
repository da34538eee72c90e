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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lastWords is how long a successor that has failed may take to end.
const lastWords = 5 * time.Second

// Succeed starts cmd with the sockets and the state, and returns once it has said that
// it is ready. When ctx ends before, or cmd does, it is killed and gone, and the error says
// so. cmd needs Path, Args and Env; what it writes goes where cmd says. On success the
// caller may wait for cmd.
func Succeed(ctx context.Context, cmd *exec.Cmd, passed []Passed, state []byte) error {
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
	if len(state) > 0 {
		from, to, err := os.Pipe()
		if err != nil {
			return err
		}
		defer from.Close()
		var written sync.WaitGroup
		defer written.Wait()
		defer to.Close() // before the wait: an older program does not read
		cmd.Env = append(cmd.Env, stateEnv+"="+strconv.Itoa(firstFD+len(cmd.ExtraFiles)))
		cmd.ExtraFiles = append(cmd.ExtraFiles, from)
		written.Go(func() {
			_, _ = to.Write(state) // who reads sees if it is not whole
			_ = to.Close()
		})
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = tell.Close() // else its end would not be seen
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(aLongTimeAgo) })
	defer stop()
	if n, err := ready.Read(make([]byte, 1)); n != 1 {
		left := lastWords // it gives up the pipe before it says why, and ends
		if ctx.Err() != nil {
			left = 0
		}
		kill := time.AfterFunc(left, func() { _ = cmd.Process.Kill() }) // it may have ended already
		defer kill.Stop()
		wait := cmd.Wait()
		if ctx.Err() != nil {
			return fmt.Errorf("the successor was not ready in time: %w", context.Cause(ctx))
		}
		why := errors.Join(wait, notEOF(err))
		if why == nil { // as a script does that was put in the program's place
			why = errors.New("exit status 0, without a word: is " + cmd.Path + " a Warmwire?")
		}
		return fmt.Errorf("the successor ended before it was ready: %w", why)
	}
	return nil
}

// notForSuccessor are variables that name another process.
func notForSuccessor(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return strings.HasPrefix(name, "LISTEN_") || name == "WATCHDOG_PID" || name == handoverEnv || name == stateEnv
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
