// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that exec hands to its child.
var passedOn = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// upgradeSignals ask for an upgrade, as those of nginx and others do.
var upgradeSignals = []os.Signal{syscall.SIGUSR2}

// sentByTerminal says whether the child has the signal already: a terminal sends
// its keys' signals to the whole foreground process group, which the child is in.
func sentByTerminal(sig os.Signal) bool {
	if sig != os.Interrupt && sig != syscall.SIGQUIT {
		return false
	}
	foreground, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// keepOwner gives f the owner and group of the file that it replaces.
func keepOwner(f *os.File, of os.FileInfo) error {
	st, ok := of.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}
