// SPDX-License-Identifier: Apache-2.0

// Package upload reads a request's body for a stream of HTTP/2 or HTTP/3: in one
// goroutine of the caller's, since a Read may wait for the app for long, and into one
// buffer. It waits for 100 (Continue) where the app asked for that, refuses a body that
// is longer or shorter than declared, and never waits for a Read that nobody needs. The
// app may close its body while it is read. How the bytes are framed and when they may
// leave is the stream's to say. All methods are safe for concurrent use; Send is called
// once.
package upload
