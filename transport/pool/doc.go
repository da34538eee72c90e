// SPDX-License-Identifier: Apache-2.0

// Package pool keeps the connections to one origin: it chooses one for each
// request, opens more when all are full, lets requests wait in order of their
// class when there may be no more, and keeps some ready ahead of need.
//
// It refuses to send anything twice: a request that failed is its caller's to
// judge. It never waits for a connection that is suspected to be dead while
// another one can be had, and never cuts what is in flight: what must go takes no
// more requests and closes when its last one has ended.
//
// A Pool starts nothing by itself until it is asked for a connection, or told to
// keep some [Pool.Keep]. Opening runs in a goroutine of its own, for whoever
// needs the connection by then. [Pool.Close] ends all that and waits. All methods
// are safe for concurrent use; one lock guards the pool and is never held over
// I/O or a callback.
package pool
