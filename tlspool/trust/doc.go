// SPDX-License-Identifier: Apache-2.0

// Package trust decides whether a server's certificate is to be believed, and says
// why not in words that an operator can act on.
//
// A [Verifier] holds the settings: which roots, which further intermediate
// certificates, which pins. [Verifier.Apply] puts it into a [tls.Config] in place of
// crypto/tls's own check, which is left out on resumed connections, forgets each
// verdict at once, ignores staples, and reads the system's roots once per process.
//
//   - Roots are the system's (on Linux its files, read again 5 to 10 seconds after a
//     change, a minute later if a folder's file was changed in place; elsewhere the
//     platform's verifier), embedded ones where the system has none, and those of
//     [Config.CA]; or those alone. See [Store].
//   - A verdict is remembered for at most [Config.Remember] (10 minutes), until a
//     certificate of the chain expires or the staple does, whichever is first. What
//     is looked up is the whole presented chain, the name, the staple and all
//     settings. 1024 verdicts are kept, the least recently used goes first. A failure
//     is never remembered. To find one takes 1 to 3 µs, to make one 80 to 300.
//   - Stapled OCSP responses (RFC 6960, 64 KiB at most) are checked: revoked is an
//     error. One that is stale or that proves nothing counts as absent and is
//     reported; if the certificate asks for a staple (RFC 7633) it is an error.
//   - Pins are hashes of public keys (RFC 7469 §2.4); one certificate of a verified
//     chain must have one of them.
//
// An [Error] has one [Reason] of a closed set. It is never temporary: the same
// certificate will not be better at the next try. But if [Error.Resumed] is set the
// certificate was that of an old session, and a full handshake may show a newer one.
//
// A [ClientCert] is our own certificate for servers that ask for one, read again
// when its files change.
//
// It refuses: to use the network (no OCSP request, no download of a missing
// certificate, no CRL), to accept a connection without a name to verify, and to
// trust anything because an earlier connection did under other settings.
//
// Nothing runs in the background: files are looked at, every 5 seconds at most, by
// the handshakes themselves (figures at [Store]). All methods are safe for
// concurrent use.
package trust
