// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	fileMagic = "warmwire-tlspool-1"
	keyBytes  = 32 // AES-256

	// maxFile bounds what is read and written: 32 MiB of tickets in JSON's
	// base64, and their keys.
	maxFile = 64 << 20 // 64 MiB
	// maxAhead is how far in the future a saved ticket may have been received:
	// clocks of machines that have just started are set a little later.
	maxAhead = time.Minute
)

// A File is where sessions are kept over a restart.
//
// It holds the secrets of sessions, past ones of TLS 1.2 included: one line with
// the version of its format and of Go, then AES-256-GCM with a random nonce over
// the rest, the line authenticated with it. Another version of Go may encode
// sessions in another way, so its file is not read.
type File struct {
	Path string
	// Key has the 32 bytes of the key, for owners that take it from their
	// environment. If it is empty, the key is in the file
	// Path+".key", which the first Save makes with mode 0600.
	Key []byte
}

func (f File) keyPath() string { return f.Path + ".key" }

// A Reason says why a file is refused.
type Reason string

// The reasons. A file that is refused is left as it is.
const (
	Damaged   Reason = "damaged"     // cut, changed, or sealed with another key
	OtherKind Reason = "other kind"  // no session file
	Version   Reason = "version"     // of another version of Go or of the format
	NoKey     Reason = "no key"      // the key file is missing, or the key is not one
	TooOpen   Reason = "too open"    // group or others may read or write it
	Owner     Reason = "other owner" // it belongs to another user
	NotPlain  Reason = "not plain"   // a symbolic link, a folder, a pipe, a file with two names
	TooLong   Reason = "too long"
	Busy      Reason = "busy"          // another process is loading it, or just has
	NoSystem  Reason = "no such check" // this system cannot tell who may read a file
)

// A FileError says which file is refused, and why. It costs nothing but warmth.
type FileError struct {
	Path   string
	Reason Reason
	Detail string // what to do, or what was found
}

func (e *FileError) Error() string {
	return fmt.Sprintf("session file %s refused (%s): %s", e.Path, e.Reason, e.Detail)
}

// A savedStore is the encrypted part of the file.
type savedStore struct {
	Keys []savedKey `json:"keys"` // the last used first
}

type savedKey struct {
	Key     Key           `json:"key"`
	Used    time.Time     `json:"used"`
	Tickets []savedTicket `json:"tickets"` // the newest last
}

type savedTicket struct {
	Label    []byte     `json:"label"`
	State    []byte     `json:"state"` // tls.SessionState.Bytes
	Received time.Time  `json:"received"`
	End      time.Time  `json:"end"`
	Verdict  *time.Time `json:"verdict,omitempty"`
	Reusable bool       `json:"reusable,omitempty"`
}

// header is the first line.
func header() []byte { return []byte(fileMagic + " " + runtime.Version() + "\n") }

// seal encrypts body with a key of keyBytes.
func seal(key, body []byte) ([]byte, error) {
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	h := header()
	return aead.Seal(h, nil, body, h), nil
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// open decrypts what seal made, of a file whose path is for the error only.
func open(path string, key, b []byte) ([]byte, error) {
	if err := checkHeader(path, b); err != nil {
		return nil, err
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	h := header()
	body, err := aead.Open(nil, nil, b[len(h):], h)
	if err != nil {
		return nil, &FileError{path, Damaged, "it was cut or changed, or its key is another one"}
	}
	return body, nil
}

func checkHeader(path string, b []byte) error {
	line, _, found := bytes.Cut(b[:min(len(b), 200)], []byte("\n"))
	kind, version, _ := strings.Cut(string(line), " ")
	switch {
	case !found || !strings.HasPrefix(kind, "warmwire-tlspool-"):
		return &FileError{path, OtherKind, "it does not begin as a session file"}
	case kind != fileMagic || version != runtime.Version():
		return &FileError{path, Version, fmt.Sprintf("it is of %q, this is %q", line, bytes.TrimSpace(header()))}
	}
	return nil
}

// decode reads the decrypted part. All of it is read before any of it is used.
func decode(path string, body []byte) (savedStore, [][]*ticket, error) {
	var saved savedStore
	if err := json.Unmarshal(body, &saved); err != nil {
		return savedStore{}, nil, &FileError{path, Damaged, "its content cannot be read"}
	}
	tickets := make([][]*ticket, len(saved.Keys))
	for i, k := range saved.Keys {
		for _, st := range k.Tickets {
			t, err := st.ticket()
			if err != nil || k.Key.ServerName == "" || k.Key != k.Key.normal() {
				return savedStore{}, nil, &FileError{path, Damaged, "a session in it cannot be read"}
			}
			tickets[i] = append(tickets[i], t)
		}
	}
	return saved, tickets, nil
}

func (st savedTicket) ticket() (*ticket, error) {
	size := len(st.Label) + len(st.State)
	life := st.End.Sub(st.Received)
	if len(st.Label) == 0 || size > maxTicket || life < 0 || life > maxLife+time.Second {
		return nil, errors.New("not a ticket")
	}
	state, err := tls.ParseSessionState(st.State)
	if err != nil {
		return nil, err
	}
	cs, err := tls.NewResumptionState(st.Label, state)
	if err != nil {
		return nil, err
	}
	t := &ticket{state: cs, size: size, reusable: st.Reusable, received: st.Received, end: st.End, verdict: &verdict{}}
	if st.Verdict != nil {
		*t.verdict = verdict{limited: true, until: *st.Verdict}
	}
	return t, nil
}

// Load adds the sessions of a file to the Store. No file is no error: nothing
// was saved. A *FileError refuses the file, any other error is the system's; in
// both cases nothing is loaded.
//
// A file that can be used is removed before its sessions are added, and the
// removal is made durable: whoever starts next, a second process, or this one
// after a crash or a loss of power, must not offer the same tickets (RFC 8446
// appendix C.4). Removing needs no write to the file, works on a disk that is
// full, and leaves no secrets behind.
func (s *Store) Load(f File) error {
	claim, err := openClaim(f.Path)
	if err != nil || claim == nil {
		return err
	}
	defer claim.Close()
	b, err := readPlain(claim, f.Path, maxFile)
	if err != nil {
		return err
	}
	if err := checkHeader(f.Path, b); err != nil {
		return err
	}
	key, err := f.key()
	if err != nil {
		return err
	}
	body, err := open(f.Path, key, b)
	if err != nil {
		return err
	}
	saved, tickets, err := decode(f.Path, body)
	if err != nil {
		return err
	}
	if err := removeClaimed(claim, f.Path); err != nil {
		return err
	}
	s.add(saved, tickets)
	return nil
}

func (s *Store) add(saved savedStore, tickets [][]*ticket) {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(saved.Keys) - 1; i >= 0; i-- { // the last used one last, so that it stays longest
		for _, t := range tickets[i] {
			if !now.Before(t.ends()) || t.received.After(now.Add(maxAhead)) {
				continue
			}
			e := s.entryLocked(saved.Keys[i].Key)
			if e.used.Before(saved.Keys[i].Used) {
				e.used = saved.Keys[i].Used
			}
			s.addLocked(e, t)
		}
	}
}

// key returns the key, from the key file if need be.
func (f File) key() ([]byte, error) {
	if len(f.Key) > 0 {
		if len(f.Key) != keyBytes {
			return nil, &FileError{f.Path, NoKey, fmt.Sprintf("the key given has %d bytes, not %d", len(f.Key), keyBytes)}
		}
		return f.Key, nil
	}
	file, err := openPlain(f.keyPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &FileError{f.keyPath(), NoKey, "the key file is missing"}
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := readPlain(file, f.keyPath(), keyBytes)
	if err == nil && len(b) != keyBytes {
		err = &FileError{f.keyPath(), NoKey, fmt.Sprintf("it has %d bytes, not %d: remove it to have a new one made", len(b), keyBytes)}
	}
	return b, err
}

// makeKey returns the key and makes the key file if there is none. Two processes
// that do so at once get the same key: a file gets its name only when it is whole,
// and only if the name is free.
func (f File) makeKey() ([]byte, error) {
	key, err := f.key()
	if err == nil || len(f.Key) > 0 {
		return key, err
	}
	if _, missing := os.Lstat(f.keyPath()); !errors.Is(missing, fs.ErrNotExist) {
		return nil, err // there is one, and it is refused
	}
	key = make([]byte, keyBytes)
	rand.Read(key) // never fails
	temp, err := writeTemp(f.keyPath(), key)
	if err != nil {
		return nil, err
	}
	err = os.Link(temp, f.keyPath())
	_ = os.Remove(temp) // unlike the key file it is not needed
	switch {
	case errors.Is(err, fs.ErrExist):
		return f.key()
	case err != nil:
		return nil, withoutTemp(err)
	}
	return key, syncFolder(f.Path)
}

// Save writes all sessions that still live to the file, as a whole or not at
// all: a full disk, or a loss of power, leaves the old file. It is for the end
// of a process: the TLS 1.3 tickets in the file are no longer offered by this
// Store, since the next process will. Calling it again writes them again, with
// what has come since.
func (s *Store) Save(f File) error { return s.save(f, (*entry).parkAll) }

// SaveSpare is as Save, but leaves the newest ticket of each key, and all but
// one of the others, to this process. It is for a process that goes on, so that
// one that crashes later starts warm: the spare ticket is offered by the next
// process only.
func (s *Store) SaveSpare(f File) error { return s.save(f, (*entry).parkSpare) }

func (s *Store) save(f File, choose func(*entry, time.Time) []*ticket) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if err := checkReplaceable(f.Path); err != nil {
		return err
	}
	key, err := f.makeKey()
	if err != nil {
		return err
	}
	old, err := openClaim(f.Path) // the lock keeps others from loading it until it is replaced
	if err == nil && old != nil {
		defer old.Close()
	}
	if !s.wrote(old) {
		s.forgetParked()
	}
	saved, parked, err := s.park(choose)
	var mark []byte
	if err == nil {
		mark, err = replace(f.Path, key, saved)
	}
	if mark == nil {
		// Nothing of it is in the file.
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, t := range parked {
			t.parked = false
		}
		return err
	}
	s.mark = mark
	return err
}

// wrote reports whether the open file, nil for none, is what the last Save
// wrote.
func (s *Store) wrote(f *os.File) bool {
	if f == nil || s.mark == nil {
		return false
	}
	b := make([]byte, len(s.mark))
	_, err := f.ReadAt(b, 0)
	return err == nil && bytes.Equal(b, s.mark)
}

// forgetParked drops the tickets of a file that somebody else has taken: they
// are that process's now.
func (s *Store) forgetParked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		for i := len(e.tickets) - 1; i >= 0; i-- {
			if t := e.tickets[i]; t.parked && !t.reusable {
				s.removeLocked(e, i)
			}
		}
	}
}

// park takes tickets out of use and returns what the file is to have, and those
// tickets that were in use until now.
func (s *Store) park(choose func(*entry, time.Time) []*ticket) (savedStore, []*ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var saved savedStore
	var parked []*ticket // now, not earlier
	now := s.cfg.Now()
	for el := s.recent.Front(); el != nil; el = el.Next() {
		e := el.Value.(*entry)
		s.dropExpiredLocked(e, now)
		chosen := choose(e, now)
		if len(chosen) == 0 {
			continue
		}
		k := savedKey{Key: e.key, Used: e.used}
		for _, t := range chosen {
			st, err := t.saved()
			if err != nil {
				return savedStore{}, parked, err
			}
			k.Tickets = append(k.Tickets, st)
		}
		saved.Keys = append(saved.Keys, k)
		for _, t := range chosen {
			if !t.parked {
				t.parked = true
				parked = append(parked, t)
			}
		}
	}
	return saved, parked, nil
}

func (e *entry) parkAll(time.Time) []*ticket { return e.tickets }

func (e *entry) parkSpare(now time.Time) []*ticket {
	newest := e.newest(now)
	spare := -1
	for i, t := range e.tickets {
		if t.parked || t.reusable {
			spare = -1
			break
		}
		if i != newest {
			spare = i // the newest but one
		}
	}
	var chosen []*ticket
	for i, t := range e.tickets {
		if t.parked || t.reusable || i == spare {
			chosen = append(chosen, t)
		}
	}
	return chosen
}

func (t *ticket) saved() (savedTicket, error) {
	label, state, err := t.state.ResumptionState()
	if err != nil {
		return savedTicket{}, err
	}
	b, err := state.Bytes()
	if err != nil {
		return savedTicket{}, err
	}
	st := savedTicket{Label: label, State: b, Received: t.received, End: t.end, Reusable: t.reusable}
	if t.verdict.limited {
		until := t.verdict.until
		st.Verdict = &until
	}
	return st, nil
}

// replace writes the file. The mark is the file's beginning, which no other file
// has; it is nil if the new file is not in place. There may be an error though it
// is.
func replace(path string, key []byte, saved savedStore) (mark []byte, err error) {
	body, err := json.Marshal(saved)
	if err != nil {
		return nil, err
	}
	b, err := seal(key, body)
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, &FileError{path, TooLong, fmt.Sprintf("it would have %d bytes", len(b))}
	}
	temp, err := writeTemp(path, b)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp) // the first error is the one to tell
		return nil, withoutTemp(err)
	}
	const nonce = 12
	return bytes.Clone(b[:len(header())+nonce]), syncFolder(path)
}

// writeTemp writes a file beside path, whole and on the disk, and returns its
// name.
func writeTemp(path string, b []byte) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return "", withoutTemp(err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to tell
		return "", withoutTemp(err)
	}
	return f.Name(), nil
}

// withoutTemp leaves out the name of a temporary file, which is another one each
// time: repeated errors look the same.
func withoutTemp(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return fmt.Errorf("write session file: %s: %w", e.Op, e.Err)
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("write session file: %s: %w", e.Op, e.Err)
	}
	return fmt.Errorf("write session file: %w", err)
}
