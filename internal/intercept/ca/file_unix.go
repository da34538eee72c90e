// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ca

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openPrivate opens a file that only we may use. The checks look at what was opened,
// so that nobody can change it under them.
func openPrivate(path string) (*os.File, error) {
	// NONBLOCK: a pipe in this place must not block the start.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EMLINK) { // EMLINK: FreeBSD
		return nil, &FileError{path, NotPlain, "it is a symbolic link"}
	}
	if err != nil {
		return nil, fmt.Errorf("open the certificate authority: %w", err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = &FileError{path, NotPlain, "it is not a regular file"}
	default:
		err = checkPrivate(path, info, "600")
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

// checkPrivate wants a file or folder that is ours alone.
func checkPrivate(path string, info fs.FileInfo, mode string) error {
	sys, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return &FileError{path, NoSystem, "its owner is unknown"}
	case int(sys.Uid) != os.Geteuid():
		return &FileError{path, Owner, fmt.Sprintf("it belongs to user %d, this process to %d", sys.Uid, os.Geteuid())}
	case info.Mode().Perm()&0o077 != 0:
		return &FileError{path, TooOpen, fmt.Sprintf("its mode is %04o: chmod %s if nobody else has had the key, else make a new one and remove this one from where it is trusted", info.Mode().Perm(), mode)}
	}
	return nil
}

// checkFolder wants a folder of ours that nobody else can enter. A symbolic link to
// one is fine: whoever can make it can change what it leads to.
func checkFolder(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("look at the folder of the certificate authority: %w", err)
	case !info.IsDir():
		return &FileError{path, NotPlain, "it is not a folder"}
	}
	return checkPrivate(path, info, "700")
}

// lockFile waits for the lock, which is held for milliseconds. Its file stays.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the certificate authority: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("lock the certificate authority: %w", err)
	}
	return func() { _ = f.Close() }, nil // which unlocks
}

// syncFolder makes the names in a folder durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // EINVAL: a file system that has no such thing
		return err
	}
	return nil
}
