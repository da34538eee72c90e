// SPDX-License-Identifier: Apache-2.0

// Package e2e runs real clients against the real program: the client matrix.
//
// Each client is a child process that streams an answer of the mock API through
// each way into Warmwire that it can use, and once directly as the control. The
// upstream holds the rest of the answer back until the client reports its first
// piece, so a run passes only if nothing in between waits for more; and the
// client's hash of what it received must be that of what was sent. How a request came
// in is what Warmwire's access log says of its trace; in a tunnel that is not to be
// intercepted it must know of none. docs/clients.md is made from the run.
//
// Beside it the realtime clients of SDKs are taken to the limits of their APIs and through
// late pongs, and a page in Chromium talks through Warmwire.
//
// Its files are tests. They need the clients: see testenv for what happens
// without them, and `make e2e-deps` for the npm packages.
package e2e
