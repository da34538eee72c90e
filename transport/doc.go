// SPDX-License-Identifier: Apache-2.0

// Package transport is the way out: an [http.RoundTripper] over one upstream,
// and Dial for tunnels.
//
// The standard library's client speaks HTTP/1.1 and HTTP/2 underneath, behind
// this package's interface. What it does by itself and an intermediary must not
// is kept from it: it adds no field, decodes nothing, follows nothing, reads no
// proxy variable, and sends nothing again unless no byte of the request reached
// the wire or HTTP/2 says that it was not processed.
//
// Raw targets: if Request.RequestURI is set, its octets are the request target
// on the wire, whatever net/url would make of them. (On HTTP/1.1 a target that
// begins with // and that net/url refuses goes out in absolute form, which RFC
// 9112 §3.2.2 obliges servers to accept.)
//
// Errors tell their phase, a stable code, whether a limit passed and whether a
// byte of the request may have been sent: see [Error] and the dial package.
//
// Limits: connect and TLS handshake for opening a connection, request_write for
// an upstream that takes no bytes of an upload, response_header from the sent
// request to its final head. Whoever reads the body limits its silence.
//
// [New] starts nothing; connections are opened by requests. All methods are safe
// for concurrent use. The httptrace hooks of a request's context are called.
package transport
