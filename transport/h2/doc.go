// SPDX-License-Identifier: Apache-2.0

// Package h2 is one client connection of HTTP/2 (RFC 9113), on the framer and
// the HPACK of golang.org/x/net.
//
// It takes a connection that is already open (TLS with ALPN h2, or plain with
// prior knowledge) and sends requests over it: [Conn.RoundTrip]. A stream's
// receive window is the buffer of its answer and is opened by what the app has
// consumed; the connection's window is returned at receipt, so that one reader
// that stops never slows another. Uploads are sent by [Class], and what is urgent
// is told to the peer in the scheme that it speaks (RFC 9218, RFC 7540).
//
// It refuses to queue: a request beyond the peer's limit of streams, or after
// GOAWAY, fails at once as provably unsent, and waiting or going elsewhere is the
// business of its owner. It never sends a request twice, adds no field that the
// request does not have (but the priority, if configured), decodes no content,
// takes no server push, never logs, and dials nothing.
//
// [New] starts two goroutines, a reader and a writer; they end when the
// connection does: by [Conn.Close], by [Conn.Shutdown] once nothing is in flight,
// or by the peer. A request has no goroutine of its own but the one that reads
// its body, which ends when the body's Read does; a body that is being read when
// the request ends is closed to that end.
//
// All methods of Conn are safe for concurrent use. A response's Body has one
// reader at a time, and may be closed at any time. The httptrace hooks
// WroteHeaders and WroteRequest are called by the connection's writer and must
// not block; the others are called by the goroutine that waits in RoundTrip.
package h2
