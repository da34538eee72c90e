// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tlspool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// openPlain opens a file that only we may read, and refuses any other. The checks
// look at what was opened, so that nobody can change it under them.
func openPlain(path string) (*os.File, error) {
	// NONBLOCK: a pipe in this place must not block the start.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EMLINK) { // EMLINK: FreeBSD
		return nil, &FileError{path, NotPlain, "it is a symbolic link"}
	}
	if err != nil {
		return nil, fmt.Errorf("open session file: %w", err)
	}
	st, err := f.Stat()
	if err == nil {
		err = checkPlain(path, st)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

func checkPlain(path string, st fs.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return &FileError{path, NoSystem, "its owner is unknown"}
	case !st.Mode().IsRegular():
		return &FileError{path, NotPlain, "it is a " + st.Mode().Type().String() + ", not a file"}
	case int(sys.Uid) != os.Geteuid():
		return &FileError{path, Owner, fmt.Sprintf("it belongs to user %d, this process to %d", sys.Uid, os.Geteuid())}
	case st.Mode().Perm()&0o077 != 0:
		return &FileError{path, TooOpen, fmt.Sprintf("its mode is %04o: chmod 600 if nobody else has read it, else remove it", st.Mode().Perm())}
	}
	return nil
}

// openClaim opens the session file and locks it. nil without an error: there is
// none.
//
// Whoever holds the lock and then finds the same file still under its name is
// the only one who will remove that file, and so the only one who uses it. A
// newer file that a Save puts there in between is lost at worst, never used
// twice.
func openClaim(path string) (*os.File, error) {
	f, err := openPlain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &FileError{path, Busy, "another process is loading it"}
		}
		return nil, fmt.Errorf("lock session file: %w", err)
	}
	if err := errors.Join(sameFile(f, path), onlyName(f, path)); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

// onlyName refuses a file that would outlive its removal under a second name.
func onlyName(f *os.File, path string) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Nlink > 1 {
		return &FileError{path, NotPlain, "it has a second name (hard link)"}
	}
	return nil
}

func sameFile(f *os.File, path string) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Lstat(path)
	if err != nil || !os.SameFile(opened, named) {
		return &FileError{path, Busy, "another process has just taken or replaced it"}
	}
	return nil
}

// removeClaimed removes the file for good.
func removeClaimed(f *os.File, path string) error {
	if err := sameFile(f, path); err != nil {
		return err
	}
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &FileError{path, Busy, "another process has just taken it"}
	}
	if err != nil {
		return fmt.Errorf("remove session file: %w", err)
	}
	return syncFolder(path)
}

// syncFolder makes the names in path's folder durable.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("open folder of session file: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // EINVAL: a file system that has no such thing
		return fmt.Errorf("sync folder of session file: %w", err)
	}
	return nil
}

// readPlain reads all of f, at most limit bytes.
func readPlain(f *os.File, path string, limit int64) ([]byte, error) {
	st, err := f.Stat()
	if err == nil && st.Size() > limit {
		return nil, &FileError{path, TooLong, fmt.Sprintf("it has %d bytes, over %d", st.Size(), limit)}
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may grow
	if err != nil {
		return nil, fmt.Errorf("read session file: %w", err)
	}
	if int64(len(b)) > limit {
		return nil, &FileError{path, TooLong, fmt.Sprintf("it has over %d bytes", limit)}
	}
	return b, nil
}

// checkReplaceable refuses to put the file in the place of what is no file.
func checkReplaceable(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at session file: %w", err)
	case !st.Mode().IsRegular():
		return &FileError{path, NotPlain, "it is a " + st.Mode().Type().String() + ", not a file"}
	}
	return nil
}
