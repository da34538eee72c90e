// SPDX-License-Identifier: Apache-2.0

// Package bufferctl keeps the memory of a process that passes streams on inside
// a bound that its operator sets.
//
// A [Budget] counts bytes. New streams wait for room in it by class ([Budget.Admit])
// and are refused at a deadline; a stream that runs is never ended to make room,
// it only may hold less: an [Account] is what one stream holds, and
// [Budget.StreamCap] shrinks while the budget fills. Every Account can always use
// the bytes that it was opened with, so streams move on at the limit, too.
//
// A [Spool] holds what a slow or absent reader has not taken yet, in memory that
// the Budget knows and beyond that in a bounded file that nobody else can read. It
// takes a writer that outruns both as a pipe does: the writer waits.
//
// A [Ring] queues records for whoever writes the log; it is the one thing here that
// drops something at its bound, and counts it.
//
// The package moves no bytes of its own accord: it starts no goroutine, knows
// neither HTTP nor a connection, never logs and never drops a byte of a stream that
// was not read. The budget is a count, no allocator: it holds what its callers tell
// it and cannot see what they forget.
//
// A Budget and a Spool are safe for concurrent use, an Account is guarded by its
// owner. A nil Budget is valid and has no bound.
package bufferctl
