// SPDX-License-Identifier: Apache-2.0

// Package ca is the certificate authority of one installation: it makes the
// certificates with which Warmwire answers in the place of listed hosts.
//
// [New] makes one in memory, for one run; [Open] keeps it in a folder and makes it on
// first need. Its certificate permits the listed hosts and the names below them and
// nothing else, by critical name constraints (RFC 5280 §4.2.1.10): whoever steals the
// key cannot be another site. Hosts cannot be added to it later. [Authority.Covers]
// tells which are missing; [Authority.Rotate] makes a new one with them, which clients
// must come to trust anew.
//
// A rotation overlaps: the next authority is handed out with the present one
// ([Authority.Certificates]) before it signs, and signs from a time that is given or
// when [Authority.Switch] says so. A host that the present one does not permit is
// signed for by the next at once. [Authority.Retire] forgets the old ones.
//
// [Authority.Certificate] gives the certificate of a host, from memory or made in 0.2
// ms. It lives for a week at most, from a day before it was made, and is made anew by
// one of its users, while the others go on with the old one, when two days are left.
// The clock is read at each use, so sleep and a clock that is put right do no harm. All
// have one key, made when the process starts: they live and end in the same memory,
// where a key for each would protect nothing. 1024 hosts are kept, the least recently
// used goes first.
//
// The folder has mode 0700 and its file 0600. A file that is cut, changed, another's
// or readable by others is an error and stays as it is. It is replaced as a whole,
// under a lock, so that processes which make or rotate at once end with the same. A
// process sees what another has changed within 5 seconds.
//
// It refuses: to make a certificate for a host that is not listed, for a pattern, or
// without constraints; to show a private key; to use the network. It starts nothing
// in the background. All methods are safe for concurrent use.
package ca
