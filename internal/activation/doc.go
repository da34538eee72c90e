// SPDX-License-Identifier: Apache-2.0

// Package activation passes open sockets from one process to the next: it takes
// those that this process was started with, from systemd (sd_listen_fds(3)) or from
// the Warmwire before it, and starts a successor with those of this one.
//
// A socket is found by its address: nothing else has to agree between the unit, the
// configuration and the process before. [Inherit] reads what the environment
// promises and refuses what does not fit it; it never guesses. [Succeed] starts the
// successor and waits until it says [Sockets.Ready]; a successor that ends before,
// or says nothing in time, leaves everything as it was.
//
// It reads no environment and no flags itself, opens no socket, and serves nothing.
// A nil *Sockets is one without sockets. A Sockets is for one goroutine. Sockets are
// passed on Unix systems only; elsewhere nothing is inherited and Succeed fails.
package activation
