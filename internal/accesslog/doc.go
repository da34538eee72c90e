// SPDX-License-Identifier: Apache-2.0

// Package accesslog writes about finished requests, off their own path: a share of
// them in full, all of them as a summary.
//
// Which requests are written in full is decided by the trace that the app says
// they belong to, as OpenTelemetry's consistent probability sampling decides, so
// that all services which keep a share of the traces keep the same ones; without a
// trace by the request's own id. Requests that failed or were cut are written
// beyond their share, at a bounded rate for each upstream and outcome, so that an
// outage is no flood. The summary counts every request, written in full or not.
//
// [Log.Record] never blocks and does not allocate: it puts the record into a
// bounded ring, and counts it as dropped when the ring is full. A full disk or a
// pipe without a reader costs no request anything: the log keeps what it has, tries
// again each second, and says once, when it works again, how much was lost.
//
// It refuses to log what an app said: a [Record] has no field for a path, a
// query, a header value or a body, and the two that come from an app's bytes, the
// method and the trace id, are written only in their known forms.
//
// Nothing is written until [Log.Run] is called. When its context ends it writes
// what is queued and returns, at the latest after Config.FlushTimeout. All
// methods are safe for concurrent use.
package accesslog
