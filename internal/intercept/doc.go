// SPDX-License-Identifier: Apache-2.0

// Package intercept decides which tunnels to a listed host may be ended here.
//
// [Look] reads from the first bytes of a tunnel what they are: a ClientHello, a request
// in clear, or neither; [Hello.Fits] says whether the handshake that they begin can be
// answered in the place of the host. [Exceptions] remembers for a while the hosts whose
// clients do not accept our certificate.
//
// It refuses to guess: bytes that are no whole, well-formed ClientHello and no request
// with a method in common use are none of ours, and their tunnel is to be left alone. It
// reads and writes no connection, changes nothing that it is shown, and keeps nothing of
// it. A ClientHello of more than 64 KiB is none. The methods of Exceptions are safe for
// concurrent use.
package intercept
