// SPDX-License-Identifier: Apache-2.0

// Package netwatch tells when the connections of this machine can no longer be
// trusted: its addresses or default routes have changed, or it has slept.
//
// On Linux the kernel tells of addresses and routes by netlink; elsewhere only
// sleep is noticed, by a wall clock that has run ahead of the monotonic one. A
// refresh of what is there already, as IPv6 routers send all the time, is no
// change, and neither are loopback and link-local addresses. Changes that come
// together are told once.
//
// It refuses to judge what follows from a change, and imports nothing of ours.
// [New] subscribes; [Watcher.Run] watches until its context ends and leaves no
// goroutine behind. A Watcher is for one Run.
package netwatch
