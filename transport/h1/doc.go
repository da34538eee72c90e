// SPDX-License-Identifier: Apache-2.0

// Package h1 is one client connection of HTTP/1.1 (RFC 9112): one request at a
// time, one after the other.
//
// It takes a connection that is already open (TLS or plain). The head of a request
// leaves in one write, before any byte of its body is there; the answer's head is
// parsed strictly, and the body is read by whoever reads it, with no goroutine in
// between. While the connection is idle it is watched: its end is known before the
// next request, and bytes that nobody asked for end it.
//
// It refuses what is ambiguous: framing that two readers could understand
// differently is an error (RFC 9112 §6.3), and an answer that was cut is never a
// clean end. It never sends a request twice, adds no field that the request does
// not have but those of framing, decodes no content, never logs, and dials nothing.
//
// [New] starts one goroutine, which ends with the connection: by [Conn.Close], by
// [Conn.Shutdown] once nothing is in flight, or by the peer. A request with a body
// has another one that sends it. All methods of Conn are safe for concurrent use; a
// response's Body has one reader at a time, and may be closed at any time.
package h1
