// SPDX-License-Identifier: Apache-2.0

// Package sidecar is the composition root: it builds the way in and the way out
// from one configuration, binds the listeners, runs everything, reloads and
// drains. It is the only package that sees all others, and has no protocol of
// its own.
//
// [New] binds the listeners, so that a Sidecar that exists is reachable, and
// starts nothing. [Sidecar.Run] serves until its context ends and returns when
// all is gone. [Sidecar.Reload] may be called at any time.
package sidecar
