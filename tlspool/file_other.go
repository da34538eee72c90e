// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package tlspool

import "os"

// Where no owner and mode tell who may read a file, none is kept.

func refuse(path string) error {
	return &FileError{path, NoSystem, "this system has no Unix file modes: leave session_file out"}
}

func openPlain(path string) (*os.File, error) { return nil, refuse(path) }

func openClaim(path string) (*os.File, error) { return nil, refuse(path) }

func removeClaimed(_ *os.File, path string) error { return refuse(path) }

func syncFolder(path string) error { return refuse(path) }

func readPlain(_ *os.File, path string, _ int64) ([]byte, error) { return nil, refuse(path) }

func checkReplaceable(path string) error { return refuse(path) }
