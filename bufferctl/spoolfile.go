// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
)

// Sizes of what a Spool stores bytes in. A full block and its tag are one chunk, so
// that it can be encrypted where it is; a chunk is also one slot of the file.
const (
	chunkSize = 16 << 10 // 16 KiB: at 4 KiB a lagging reader costs a system call per 4 KiB, at 64 KiB an idle one holds 64
	tagSize   = 16
	blockSize = chunkSize - tagSize
)

type chunk [chunkSize]byte

// A storage is an open file, or a test's stand-in.
type storage interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
}

// A spoolFile is the part of a Spool that is on disk: slots of one chunk each,
// encrypted under a key that exists in this process only.
type spoolFile struct {
	open func() (storage, error)
	aead cipher.AEAD

	io sync.Mutex // held over writing and truncating, taken before Spool.mu

	mu     sync.Mutex // guards the fields below
	f      storage    // nil until the first write
	closed bool
}

func newSpoolFile(dir string) (*spoolFile, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &spoolFile{open: func() (storage, error) { return createUnlinked(dir) }, aead: aead}, nil
}

// createUnlinked makes a file that only this process can reach. Where an open file
// cannot be unlinked it is removed when it is closed.
func createUnlinked(dir string) (storage, error) {
	f, err := os.CreateTemp(dir, "warmwire-spool-*") // mode 0600
	if err != nil {
		return nil, err
	}
	if os.Remove(f.Name()) != nil {
		return &linkedFile{f}, nil
	}
	return f, nil
}

type linkedFile struct{ *os.File }

func (f *linkedFile) Close() error {
	err := f.File.Close()
	if removed := os.Remove(f.Name()); err == nil {
		err = removed
	}
	return err
}

// nonce is different for each block of a Spool: no two begin at the same position. A
// block that could not be written is encrypted again with the same, and is the same.
func nonce(position int64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 4, 12), uint64(position))
}

// write stores the full block in c, which begins at position, and leaves it
// encrypted. If that fails, c is as it was.
func (s *spoolFile) write(slot int, position int64, c *chunk) error {
	s.io.Lock()
	defer s.io.Unlock()
	f, err := s.file()
	if err != nil {
		return fmt.Errorf("create spool file: %w", err)
	}
	s.aead.Seal(c[:0], nonce(position), c[:blockSize], nil)
	n, err := f.WriteAt(c[:], int64(slot)*chunkSize)
	if n == chunkSize && err == nil {
		return nil
	}
	if err == nil {
		err = io.ErrShortWrite
	}
	if _, broken := s.aead.Open(c[:0], nonce(position), c[:], nil); broken != nil {
		panic("bufferctl: internal error: what was encrypted cannot be decrypted")
	}
	return fmt.Errorf("write spool file: %w", err)
}

// read fills c with the block that write stored. A file that does not hold exactly
// those bytes is an error.
func (s *spoolFile) read(slot int, position int64, c *chunk) error {
	f, err := s.file()
	if err != nil {
		return fmt.Errorf("open spool file: %w", err)
	}
	if n, err := f.ReadAt(c[:], int64(slot)*chunkSize); n < chunkSize {
		return fmt.Errorf("read spool file: %w", err)
	}
	if _, err := s.aead.Open(c[:0], nonce(position), c[:], nil); err != nil {
		return fmt.Errorf("read spool file at position %d: what it holds was not written by us: %w", position, err)
	}
	return nil
}

// empty gives the file's space back to the disk, if unused still says so.
func (s *spoolFile) empty(unused func() bool) {
	s.io.Lock()
	defer s.io.Unlock()
	if !unused() { // a slot is taken before s.io, so no write comes between
		return
	}
	if f, err := s.file(); err == nil {
		_ = f.Truncate(0) // what stays is used again, and is gone at Close
	}
}

func (s *spoolFile) file() (storage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	if s.f == nil {
		f, err := s.open()
		if err != nil {
			return nil, err
		}
		s.f = f
	}
	return s.f, nil
}

// close does not wait for a read or write of a disk that hangs.
func (s *spoolFile) close() error {
	s.mu.Lock()
	f := s.f
	s.f, s.closed = nil, true
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.Close()
}
