// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// clockTick is USER_HZ, which Linux fixes at 100 for what it shows to programs.
const clockTick = 10 * time.Millisecond

// monotonic is the machine's monotonic clock in ns, the same in every process:
// a stamp by one of them can be subtracted by another, and no correction of the
// wall clock comes in between.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("bench: internal error: no monotonic clock: " + err.Error())
	}
	return ts.Nano()
}

// cpuTime is what a process has used, user and system (proc(5), stat fields 14
// and 15).
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // the name may hold spaces
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// runTime is what the threads of a process have used, to the nanosecond (proc(5),
// schedstat). What threads used that have ended is not in it; Go's rarely do.
func runTime(pid int) (sum time.Duration, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, errors.Join(err, fmt.Errorf("/proc/%d has no schedstat", pid))
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return 0, err
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			return 0, fmt.Errorf("%s: %w", task, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// rss is the resident memory of a process in bytes.
func rss(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm has %d fields", pid, len(fields))
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// peak is the most memory that was resident at once (proc(5), VmHWM).
func peak(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, ok := bytes.Cut(text, []byte("VmHWM:"))
	if !ok {
		return 0, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
	}
	fields := bytes.Fields(after)
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	return kib << 10, err
}
