// SPDX-License-Identifier: Apache-2.0

// Package accesslog writes one line about a finished request, sampled, and off
// the request's own path.
//
// Requests that failed or were cut are always logged, others by a sample that
// depends on the request's id alone, so that two readers of the same id agree.
// [Log.Record] never blocks: it puts the record into a bounded queue, and counts
// it as dropped when the queue is full, which is said in the log as soon as there
// is room again.
//
// It refuses to log what an app said: a [Record] has no field for a path, a
// query, a header value or a body, and the two that come from an app's bytes, the
// method and the trace id, are written only in their known forms.
//
// Nothing is written until [Log.Run] is called. When its context ends it writes
// what is queued and returns, at the latest after Config.FlushTimeout. All
// methods are safe for concurrent use.
package accesslog
