// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	idleLimitsName = "idle.limits"
	idleLimitsMost = 1000 // origins
	idleLimitsAge  = 30 * 24 * time.Hour

	maxStateFile = 1 << 20 // bytes; far above what is written
)

// idleLimits are what was learned of how long servers keep idle connections, over the
// life of the process. Between two networks they may differ: a limit that is too long
// costs one connection, and is learned anew.
type idleLimits struct {
	path string

	mu    sync.Mutex // guards known
	known map[string]idleLimit
}

// An idleLimit is one line of the file.
type idleLimit struct {
	Limit string    `json:"limit"`
	Seen  time.Time `json:"seen"`
}

// idleFile is the file's form; another version is not read.
type idleFile struct {
	Version int                  `json:"version"`
	Idle    map[string]idleLimit `json:"idle"`
}

// loadIdleLimits reads what an earlier process has learned. The error says why nothing
// was, and is no reason not to start.
func loadIdleLimits(dir string) (*idleLimits, error) {
	l := &idleLimits{path: filepath.Join(dir, idleLimitsName), known: make(map[string]idleLimit)}
	data, err := readState(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	var file idleFile
	if err := json.Unmarshal(data, &file); err != nil || file.Version != 1 {
		return l, fmt.Errorf("%s is none of this version's: it will be written anew", l.path)
	}
	for origin, limit := range file.Idle {
		if now := time.Now(); limit.Seen.After(now) { // the clock was wrong then, or is now: it ages from here
			limit.Seen = now.UTC().Truncate(time.Second)
		}
		if d, err := time.ParseDuration(limit.Limit); err == nil && d > 0 && time.Since(limit.Seen) < idleLimitsAge && len(l.known) < idleLimitsMost {
			l.known[origin] = limit
		}
	}
	return l, nil
}

// readState reads a file of the state's folder. It is looked at before it is opened,
// because opening a pipe waits for a writer.
func readState(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxStateFile))
}

// of is what is known of an origin, 0 if nothing.
func (l *idleLimits) of(origin string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, _ := time.ParseDuration(l.known[origin].Limit)
	return d
}

// note takes what the pools know now, and reports whether anything is new.
func (l *idleLimits) note(now map[string]time.Duration) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for origin, d := range now {
		old, there := l.known[origin]
		if d <= 0 || !there && len(l.known) >= idleLimitsMost {
			continue
		}
		if fresh := (idleLimit{d.String(), time.Now().UTC().Truncate(time.Second)}); fresh.Limit != old.Limit || fresh.Seen.Sub(old.Seen) > time.Hour {
			l.known[origin], changed = fresh, true
		}
	}
	return changed
}

// save writes the file, whole or not at all.
func (l *idleLimits) save() error {
	l.mu.Lock()
	data, err := json.MarshalIndent(idleFile{1, maps.Clone(l.known)}, "", "  ")
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return writeWhole(l.path, append(data, '\n'))
}

// writeWhole puts data into the file at path, whole or not at all.
func writeWhole(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // there only if something below failed
	if _, err = f.Write(data); err == nil {
		err = f.Sync() // else a machine that stops may leave an empty file under the name
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// saveIdleLimits keeps what the pools have learned for the next process.
func (s *Sidecar) saveIdleLimits() {
	now := make(map[string]time.Duration)
	for _, b := range s.shown.Load().upstreams {
		for origin, st := range b.transport.State() {
			now[origin] = st.Learned
		}
	}
	var err error
	if s.idleLimits.note(now) {
		err = s.idleLimits.save()
	}
	if s.beats.paths.Len() > 0 {
		err = errors.Join(err, writeWhole(s.beats.file, s.beats.paths.Save()))
	}
	if err == nil {
		s.idleUnsaved.Store(false)
	} else if !s.idleUnsaved.Swap(true) { // told once
		s.log.Warn("what was learned of connections could not be written", "folder", filepath.Dir(s.idleLimits.path), "error", err.Error())
	}
}
