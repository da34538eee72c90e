// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import "os"

// passedOn are the signals that exec hands to its child.
var passedOn = []os.Signal{os.Interrupt}

// upgradeSignals ask for an upgrade: there are none.
var upgradeSignals []os.Signal

// sentByTerminal: a console tells all its processes.
func sentByTerminal(os.Signal) bool { return true }

// keepOwner: a new file inherits what its folder says.
func keepOwner(*os.File, os.FileInfo) error { return nil }
