// SPDX-License-Identifier: Apache-2.0

// Package arch holds the tests that keep the shape of the code base: who may
// import whom, and the house rules that a compiler does not know.
//
// It is read by `go test` alone and exports nothing. It parses the files itself
// and never asks `go list`: the test cache notices the files a test opened, but
// not those that a child process opened, and a gate whose verdict is remembered
// from before the fault is no gate.
//
// rules_test.go is the part to edit: a table entry for each package, an
// allow-list with a reason for each exception. check_test.go is the checker, and
// testdata holds one small tree for each fault it must find.
package arch
