// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netlab

import "errors"

// Available says why a lab cannot run: it is made of Linux's network namespaces.
func Available() error { return errors.New("netlab: needs Linux") }

// Main is false: there are no child processes of a lab here.
func Main() bool { return false }
