// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxKeyBytes = 1 << 20          // of a file or an answer
	wakePause   = 30 * time.Second // between fetches because of unknown keys: whoever sends tokens decides about those
	firstRetry  = time.Second
)

// KeyConfig says where keys come from; any of them may be set.
type KeyConfig struct {
	Secret  string        // for HS256, HS384 and HS512; 32 bytes at least
	File    string        // PEM, or a JWK set; read again at each refresh
	URL     string        // of a JWK set
	Refresh time.Duration // how often the file and the URL are read; 0 = 15 min
}

// Keys are the keys in force. New ones replace them only once they are whole.
type Keys struct {
	fetch func(ctx context.Context, url string) ([]byte, error)
	wakes chan struct{} // holds one token once an unknown key was named
	moved chan struct{} // holds one token once the source has changed
	set   atomic.Pointer[keySet]

	mu      sync.Mutex // guards the fields below
	source  *Source
	fetched time.Time
	err     error // of the last fetch; nil = it was good
}

// A Source is a checked KeyConfig with what its file holds.
type Source struct {
	cfg                   KeyConfig
	secret, file, fetched []*key
	fileText, urlText     []byte
}

// NewKeys returns Keys without any. fetch gets a JWK set by its URL; it must
// bound what it reads, and its time.
func NewKeys(fetch func(ctx context.Context, url string) ([]byte, error)) *Keys {
	return &Keys{fetch: fetch, wakes: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
}

// Load reads the secret and the file of cfg, and changes nothing yet.
func Load(cfg KeyConfig) (*Source, error) {
	if cfg.Refresh == 0 {
		cfg.Refresh = 15 * time.Minute
	}
	s := &Source{cfg: cfg}
	if cfg.Secret != "" {
		k, err := secretKey("", "", []byte(cfg.Secret))
		if err != nil {
			return nil, err
		}
		s.secret = []*key{k}
	}
	if cfg.File == "" {
		return s, nil
	}
	var err error
	if s.fileText, err = readFile(cfg.File); err != nil {
		return nil, err
	}
	if s.file, err = parseKeys(s.fileText, true); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	return s, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyBytes {
		return nil, fmt.Errorf("%s is no file of at most 1 MiB", path)
	}
	return os.ReadFile(path)
}

// Use puts a source in force. What was fetched from the same URL stays until
// Run has fetched it anew.
func (k *Keys) Use(s *Source) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.source; old != nil && old.cfg.URL == s.cfg.URL {
		s.fetched, s.urlText = old.fetched, old.urlText
	} else {
		k.fetched, k.err = time.Time{}, nil
	}
	unchanged := k.source != nil && k.source.cfg == s.cfg && bytes.Equal(k.source.fileText, s.fileText)
	if k.source = s; !unchanged {
		k.publishLocked()
	}
	poke(k.moved)
}

// publishLocked makes one set of what all sources give.
func (k *Keys) publishLocked() {
	s := k.source
	all := append(append(append([]*key(nil), s.secret...), s.file...), s.fetched...)
	if len(all) == 0 {
		k.set.Store(nil)
		return
	}
	k.set.Store(newKeySet(all))
}

// current is nil while there are no keys.
func (k *Keys) current() *keySet { return k.set.Load() }

// wake asks for a refresh before its time.
func (k *Keys) wake() { poke(k.wakes) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a token is waiting already
	}
}

// Run reads files and URLs again and again until ctx ends, and then returns nil.
// A failure keeps what there is, and is tried again sooner. Call it once.
func (k *Keys) Run(ctx context.Context) error {
	timer := time.NewTimer(idle) // Use has asked for the first time
	defer timer.Stop()
	var last, due time.Time
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.moved:
			failures = 0
		case <-k.wakes:
			// An unknown key may be a new one, but who sends tokens must not set the pace.
			if soonest := last.Add(wakePause); time.Now().Before(soonest) {
				if soonest.Before(due) {
					due = soonest
					timer.Reset(time.Until(due))
				}
				continue
			}
		case <-timer.C:
		}
		every, err := k.refresh(ctx)
		if failures++; err == nil {
			failures = 0
		}
		wait := every
		if failures > 0 {
			wait = min(every, firstRetry<<min(failures-1, 10))
		}
		last = time.Now()
		due = last.Add(wait)
		timer.Reset(wait)
	}
}

// idle is how long Run sleeps where nothing can be read again.
const idle = 24 * time.Hour

// refresh reads the source once more, and says how long what it gave is good for.
func (k *Keys) refresh(ctx context.Context) (time.Duration, error) {
	k.mu.Lock()
	s := k.source
	k.mu.Unlock()
	if s == nil || s.cfg.File == "" && s.cfg.URL == "" {
		return idle, nil
	}
	fresh := *s
	var fileErr, urlErr error
	if s.cfg.File != "" {
		fileErr = fresh.readFile()
	}
	if s.cfg.URL != "" {
		urlErr = fresh.fetch(ctx, k.fetch)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.source != s { // a reload was faster; it has asked for another refresh
		return s.cfg.Refresh, nil
	}
	k.err = errors.Join(fileErr, urlErr)
	if s.cfg.URL != "" && urlErr == nil {
		k.fetched = time.Now()
	}
	if !bytes.Equal(fresh.fileText, s.fileText) || !bytes.Equal(fresh.urlText, s.urlText) {
		k.source = &fresh
		k.publishLocked()
	}
	return s.cfg.Refresh, k.err
}

// readFile reads the file once more; a bad one changes nothing.
func (s *Source) readFile() error {
	text, err := readFile(s.cfg.File)
	if err != nil {
		return err
	}
	keys, err := parseKeys(text, true)
	if err != nil {
		return fmt.Errorf("%s: %w", s.cfg.File, err)
	}
	s.file, s.fileText = keys, text
	return nil
}

// fetch gets the JWK set once more; a bad one changes nothing.
func (s *Source) fetch(ctx context.Context, get func(context.Context, string) ([]byte, error)) error {
	text, err := get(ctx, s.cfg.URL)
	if err == nil && len(text) > maxKeyBytes {
		err = errors.New("more than 1 MiB")
	}
	var keys []*key
	if err == nil {
		keys, err = parseKeys(text, false)
	}
	if err != nil {
		return fmt.Errorf("keys of %s: %w", s.cfg.URL, err)
	}
	s.fetched, s.urlText = keys, text
	return nil
}

// KeyState is what is known of the keys.
type KeyState struct {
	Keys    int
	Fetched time.Time // the last good answer of the URL; zero = none yet
	Err     error     // of the last refresh; what was there before is in use
}

// State tells how the keys are.
func (k *Keys) State() KeyState {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := KeyState{Fetched: k.fetched, Err: k.err}
	if set := k.set.Load(); set != nil {
		st.Keys = len(set.keys)
	}
	return st
}
