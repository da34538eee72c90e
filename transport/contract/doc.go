// SPDX-License-Identifier: Apache-2.0

// Package contract is what the product relies on an http.RoundTripper for, as a
// table that runs against a connection of each protocol alike. It is for tests:
// it starts nothing by itself, and fails the test that it is given. A case runs on
// a connection to a server of its own.
package contract
