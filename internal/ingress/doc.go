// SPDX-License-Identifier: Apache-2.0

// Package ingress is the way in: it takes an app's requests from a local
// listener, decides which upstream each one means, and relays the answer as it
// comes.
//
// It serves HTTP/1.1 (through its own http1 package) and HTTP/2 without TLS on
// one port, and reads from a request's form what it is: base URL, Host header,
// absolute form, CONNECT or a WebSocket upgrade in any of these.
//
// What it promises: a response reaches the app byte for byte, the head when it
// arrives and each read before the next one blocks; a stream that was cut looks
// cut; when the app leaves, the upstream request is cancelled at once; nothing
// is sent twice by this package.
//
// What it refuses: it never decodes, stores or logs a body or a header value,
// follows no redirect, opens no connection itself (a [http.RoundTripper] and a
// dial function are given to it) and knows no metrics library: it reports each
// finished request as a [Record].
//
// [New] starts nothing. [Server.Serve] runs one listener until its context ends;
// [Server.Update] swaps the routing table, and requests that run keep the one
// they began with; [Server.Drain] and [Server.Abort] end it. All methods are
// safe for concurrent use.
package ingress
