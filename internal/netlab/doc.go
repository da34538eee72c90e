// SPDX-License-Identifier: Apache-2.0

// Package netlab is a bad network on one machine, for tests and for people.
//
// A [Lab] has two hosts, a client and a server, each a network namespace with
// the kernel's own TCP, UDP, IPv4 and IPv6. Their packets pass through a
// forwarder that delays, drops, holds, reorders and translates them as two
// [Link] values and a [NAT] say, which may change while it runs. It is there for
// kernels without netem and needs Linux, root and /dev/net/tun; [Available] says
// whether it can run.
//
// The forwarder is the program itself, started again with real time priority and
// one thread that sleeps until a packet is due: the scheduler of a busy Go
// program would be tens of milliseconds late. So a program or test that makes a
// Lab must call [Main] first thing. [New] starts the forwarder and [Lab.Close]
// ends it; one goroutine waits for it in between. Namespaces, devices and the
// forwarder have no names and are held by descriptors only: they go when the
// process goes, killed or not.
//
// What happens to a packet is decided by plain code that is told the time and
// the seed: same seed, same packets, same times, same fate. Loss, bursts,
// reordering and duplication do not depend on the times.
//
// It does not model a shared medium, other traffic, or congestion: a queue is of
// one direction and holds the hosts' own packets. It does not resolve names, and
// never touches the machine's own network.
//
// [Mem] is a network inside one process for tests on a fake clock: buffered
// connections with a one-way delay, half-close and reset. It has no kernel in it
// and so shows nothing of how TCP behaves.
//
// The package imports nothing of the product, so that it cannot share its
// mistakes.
package netlab
