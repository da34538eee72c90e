// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package ca

import "os"

// Where no owner and mode tell who may read a file, no key is kept in one. An
// authority in memory works.

func refuse(path string) error {
	return &FileError{path, NoSystem, "this system has no Unix file modes, so the key is kept in memory only: use `warmwire exec`"}
}

func openPrivate(path string) (*os.File, error) { return nil, refuse(path) }

func checkFolder(path string) error { return refuse(path) }

func lockFile(path string) (unlock func(), err error) { return nil, refuse(path) }

func syncFolder(string) error { return nil } // the bundle is no secret
