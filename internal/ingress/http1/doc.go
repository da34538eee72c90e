// SPDX-License-Identifier: Apache-2.0

// Package http1 is a strict HTTP/1.0 and HTTP/1.1 server side for one
// connection at a time: it reads requests and calls an [http.Handler].
//
// It exists because an intermediary needs what net/http's server does not do:
//
//   - A body is read while the answer is written; the start of an answer never
//     closes or drains the request body.
//   - The app's leaving is noticed at once, in every state: waiting, streaming,
//     in mid-upload, and while the upload stands still because nobody takes it.
//     The request context is then cancelled with [ErrClientLeft]. An app that
//     only shut down its sending side gets its full answer.
//   - "100 Continue" is the handler's to send, or not.
//   - An answer is what the handler said: no Date, Server or Content-Type is
//     added, no field is merged or split. Each Write is on the wire, in one
//     system call, when it returns.
//   - A cut answer looks cut.
//
// It refuses, with the fitting status, a JSON or text body and a closed
// connection, whatever two readers could understand differently: bare LF and
// CR, folded fields, space before a colon, repeated or malformed Content-Length,
// Transfer-Encoding beside Content-Length or other than exactly "chunked", bad
// chunks, missing, repeated or malformed Host, userinfo. Bytes of a body are
// never parsed as a next request, and pipelined requests run strictly one after
// another. It never logs, opens no connection, and knows no limit on bodies:
// they flow through one bounded buffer with back-pressure.
//
// [New] starts nothing. [Server.ServeConn] runs one connection in the caller's
// goroutine, which is the only one that reads; a second one runs the handler
// while there is a request. It returns when both are done. An idle connection
// holds no buffer. [Server.Drain] ends idle connections and lets the others
// finish their request. All methods of Server are safe for concurrent use; a
// request's ResponseWriter may be used by one goroutine at a time, with the
// exception of WriteHeader of interim (1xx) answers, which may come from another.
package http1
