// SPDX-License-Identifier: Apache-2.0

// Package webguard tells whether a request could be the work of a web page that
// has no business with a local listener.
//
// A browser on the same machine reaches loopback like any program. Two things
// give a page away: the Host of a name that was pointed at loopback (DNS
// rebinding), which [CheckHost] refuses, and the Origin and Sec-Fetch-Site fields
// that a browser adds and a page cannot remove, which [CheckOrigin] refuses.
// Programs that are no browsers send neither field and pass. Hosts and origins
// are parsed and compared whole, never by prefix or suffix; what does not parse
// is refused.
//
// It is no authentication: a program can send any field it likes. It keeps no
// state, starts nothing, and everything in it is safe for concurrent use.
package webguard
