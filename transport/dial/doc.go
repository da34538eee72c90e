// SPDX-License-Identifier: Apache-2.0

// Package dial turns host:port into a TCP connection: it resolves the name,
// races the addresses (Happy Eyeballs, RFC 8305) and says which step failed.
//
// It refuses nothing by itself; a policy that must look at addresses, not names,
// is given to it and asked right before each address is dialled.
//
// A [Dialer] starts nothing; its method is safe for concurrent use. Between dials
// it keeps a [Memory], bounded: which address of a host won, which ones failed,
// and how long connecting takes. The httptrace hooks of the context are called.
//
// [ReadInfo] reads the kernel's view of a path: round trips, losses, backoff.
package dial
