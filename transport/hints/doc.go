// SPDX-License-Identifier: Apache-2.0

// Package hints reads what an upstream's answer says of its limits: for how long to
// leave it alone ([Asked]), and how much of each limit is left ([Limits]).
//
// It reads fields of a head and nothing else; what is not understood says nothing. It
// decides nothing, keeps nothing and starts nothing.
package hints
