// SPDX-License-Identifier: Apache-2.0

// Package xconnect makes net/http's HTTP/2 server offer extended CONNECT (RFC 8441), by
// which browsers and other HTTP/2 clients open WebSockets.
//
// The server offers it only if GODEBUG holds http2xconnect=1 when net/http is initialised;
// a //go:debug line cannot say so. This package imports nothing but os, so it is
// initialised before. [Restore] gives the environment its old value, so that programs
// which are started from this one do not inherit the setting; whoever imports net/http
// and this calls it once, from its own init. It does nothing else.
package xconnect

import "os"

const name = "GODEBUG"

var before, was = os.LookupEnv(name)

func init() {
	setting := "http2xconnect=1"
	if before != "" {
		setting = before + "," + setting
	}
	_ = os.Setenv(name, setting) // without it WebSockets come over HTTP/1.1
}

// Restore undoes the change of the environment.
func Restore() {
	if was {
		_ = os.Setenv(name, before)
	} else {
		_ = os.Unsetenv(name)
	}
}
