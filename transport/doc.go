// SPDX-License-Identifier: Apache-2.0

// Package transport is the way out: an [http.RoundTripper] over one upstream,
// and Dial for tunnels.
//
// Each origin has a pool of connections (package pool) of our own kinds: h2 and h1.
// A request goes over the best one; it is sent again, over another one, only while
// it provably was not processed: no byte of it was written, or HTTP/2 says so
// (RFC 9113 §8.7). The package adds no field of its own but framing and, over
// HTTP/2, the priority of its class; it decodes nothing, follows nothing, and reads
// no proxy variable.
//
// Raw targets: if Request.RequestURI is set, its octets are the request target
// on the wire, whatever net/url would make of them.
//
// Each connection is watched while a request is open on it (package heartbeat): a
// peer that is silent and answers a probe is waited for, a path that is down is
// waited for, and a flow that is dead is left. HTTP/2 probes with PING, HTTP/1.1 has
// the kernel probe.
//
// Errors tell their phase, a stable code, whether a limit passed and whether a
// byte of the request may have been sent: see [Error] and the dial package.
//
// Limits: connect and TLS handshake for opening a connection, request_write for
// an upstream that takes no bytes of an upload, response_header from the sent
// request to its final head. Whoever reads the body limits its silence.
//
// [New] starts nothing; connections are opened by requests, and by
// [Transport.Keep] ahead of them. [Transport.Close] ends what is left. All methods
// are safe for concurrent use. The httptrace hooks of a request's context are
// called; those of opening a connection by the request that asked for it first.
package transport
