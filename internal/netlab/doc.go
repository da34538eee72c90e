// SPDX-License-Identifier: Apache-2.0

// Package netlab is a bad network on one machine, for tests and for people.
//
// [Mem] is a network inside one process for tests on a fake clock: buffered
// connections with a one-way delay, half-close and reset. It has no kernel in it
// and so shows nothing of how TCP behaves.
//
// It imports nothing of the product, so that it cannot share its mistakes.
package netlab
