// SPDX-License-Identifier: Apache-2.0

// Package inspect examines the TLS of one server from outside, as a client of
// Warmwire's kind meets it: the certificates it presents and what is wrong with
// them, its staple, the versions and protocols it speaks, its key exchange, the
// tickets it hands out, and what a full handshake costs beside a resumed one.
//
// [TLS] does all of it and returns a [Report]; [New] and [Prober.Compare] make
// the timed handshakes alone. A report takes 11 connections and three for each
// of [Config.Handshakes] at most, one after another, each bounded by
// [Config.Timeout], and sends no byte of application data over any: it makes
// handshakes and listens for tickets. A part that fails says so in its place of
// the report and costs none of the others.
//
// To look at a certificate that does not verify it must finish handshakes that a
// client would break off; nothing is asked of such a server. It refuses to fetch
// missing certificates, revocation lists or OCSP answers: it names where they
// are. What a server says of its tickets is read from a recording of the first
// connection, whose traffic secret is wiped with it; no ticket, key or session is
// in a report. It keeps no state between reports, and does not tell what a server
// does over QUIC.
//
// Nothing runs but inside these calls. A Prober is for one goroutine at a time.
package inspect
