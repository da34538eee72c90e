// SPDX-License-Identifier: Apache-2.0

// Package tlspool keeps what a TLS client needs to resume: the session tickets
// that servers gave, one bounded stack for each [Key], over TCP and QUIC alike.
//
// A [Handshake] is one connection's side of the [Store] and is what its
// tls.Config gets as ClientSessionCache. Go's own cache key (the server name) is
// ignored, since it knows neither port, protocols, trust nor client identity:
// sessions are never shared across any of these.
//
// What it keeps to:
//   - A TLS 1.3 ticket is offered at most once (RFC 8446 appendix C.4), also
//     across restarts. A TLS 1.2 session may be offered again (RFC 5077 section
//     3.4), and a newer one replaces it.
//   - A ticket is never offered after its end: what the server said, at most
//     seven days (RFC 8446 section 4.6.1); 24 hours for TLS 1.2 (RFC 5246
//     appendix F.1.4, since Go hides the server's hint); one hour if Go's
//     session encoding is not the known one; and never after the end of the
//     verdict about its certificate chain, which tickets of a resumed connection
//     inherit (see [Handshake.Verified]).
//   - A ticket with which a handshake failed is gone (RFC 5077 section 3.2) and
//     the next handshake of its key is full: one after the first failure, then
//     2, 4, up to 64 while no resumption succeeds in between.
//   - A ticket whose ClientHello may have left is never given back. The store
//     cannot see that: Go writes the ClientHello at once after taking the ticket.
//     Only the owner of the connection knows, and says so with
//     [Handshake.Unsent].
//
// A server that gives no new ticket with a resumed handshake (HAProxy with
// tls-ticket-keys and TLS 1.3) runs the stack dry, and every third or so
// handshake is full: using a ticket twice would let an observer link the
// connections.
//
// Limits: Config.MaxKeys keys, the least recently used leaves first;
// Config.MaxTickets tickets a key, the oldest leaves first; Config.MaxBytes for
// all, counted in encoded bytes; 64 KiB for one ticket, longer ones are not
// kept. A ticket with a chain of three takes 0.7 KiB of memory, since
// certificates are shared between sessions, and a staple more if there was one;
// encoded 1.9 KiB (P-256) or 3.4 KiB (RSA), and about that much of memory too if
// it came from a file (BenchmarkMemory).
//
// [Store.Save] and [Store.Load] keep sessions over a restart, encrypted. A
// ticket in the file counts as taken from memory, and a file that is loaded is
// removed before its first ticket can be offered, so that neither a crash nor a
// second process uses a ticket twice. The price is that a crash costs the warmth
// of what no later Save wrote; [Store.SaveSpare] may be called at any time to
// keep one spare ticket of each key in the file for that.
//
// It refuses to dial, to verify and to log, holds no global state and starts
// nothing. The identifiers in a Key are the owner's and must be stable across
// restarts. All methods are safe for concurrent use.
package tlspool
