// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"bytes"
	"cmp"
	"container/list"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// lately is how long after its last use a key is refreshed at least; longer if
// its tickets live longer. Guess: an app that pauses for lunch stays warm.
const lately = time.Hour

// Config bounds a Store. The zero value is the default.
type Config struct {
	MaxKeys    int              // 0 means 1024
	MaxTickets int              // for one key; 0 means 8
	MaxBytes   int              // for all tickets, encoded; 0 means 32 MiB
	Now        func() time.Time // nil means time.Now
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.MaxKeys = cmp.Or(c.MaxKeys, 1024)
	c.MaxTickets = cmp.Or(c.MaxTickets, 8)
	c.MaxBytes = cmp.Or(c.MaxBytes, 32<<20)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.MaxKeys < 0 || c.MaxTickets < 0 || c.MaxBytes < 0 {
		return fmt.Errorf("tlspool: negative limit: %d keys, %d tickets, %d bytes", c.MaxKeys, c.MaxTickets, c.MaxBytes)
	}
	return nil
}

// A Key says which handshakes may share sessions: those for which all of it is
// equal. Upper and lower case of ServerName are the same. Without ServerName
// nothing is kept, because nothing would tie a session to a name.
type Key struct {
	ServerName string
	Port       string
	Protocols  string // the ALPN list, joined by commas
	QUIC       bool
	Trust      string // identifies the trust settings
	Client     string // identifies our client certificate
	MinVersion uint16 // of TLS
}

// A Store keeps sessions by Key. Make one with New.
type Store struct {
	cfg Config

	saving sync.Mutex // held over a whole Save, I/O included; taken before mu
	mark   []byte     // guarded by saving: the beginning of the file that the last Save wrote

	mu      sync.Mutex // guards the fields below, and all entries, tickets, verdicts and handshakes
	entries map[Key]*entry
	recent  *list.List // of *entry, the last used first
	bytes   int        // of all tickets
}

// An entry is what is known about one key.
type entry struct {
	key     Key
	element *list.Element
	tickets []*ticket // the newest last
	used    time.Time // the last handshake that was no refresh

	streak int // failures with a ticket since the last resumption
	full   int // so many next handshakes take no ticket

	counts Counts
}

// Counts are totals of one key since the Store was made.
type Counts struct {
	Offered uint64 // handshakes that took a ticket
	Resumed uint64 // and that the server resumed
	Full    uint64 // handshakes that were full, with those refused
	Refused uint64 // full although a ticket was offered: the server's keys changed, or its tickets died
	Failed  uint64 // failed with a ticket
	Stored  uint64 // tickets received and kept
}

// New returns an empty Store. It panics on a Config that does not Validate.
func New(cfg Config) *Store {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	return &Store{cfg: cfg.WithDefaults(), entries: map[Key]*entry{}, recent: list.New()}
}

func (k Key) normal() Key {
	k.ServerName = strings.ToLower(k.ServerName)
	return k
}

// entryLocked returns the entry of k as the last used one, and makes it if need
// be. The least recently used one makes room.
func (s *Store) entryLocked(k Key) *entry {
	if e := s.entries[k]; e != nil {
		s.recent.MoveToFront(e.element)
		return e
	}
	for len(s.entries) >= s.cfg.MaxKeys {
		s.dropLocked(s.oldestLocked())
	}
	e := &entry{key: k}
	e.element = s.recent.PushFront(e)
	s.entries[k] = e
	return e
}

func (s *Store) oldestLocked() *entry { return s.recent.Back().Value.(*entry) }

func (s *Store) dropLocked(e *entry) {
	s.clearLocked(e)
	s.recent.Remove(e.element)
	delete(s.entries, e.key)
}

// clearLocked drops the tickets of e and returns how many there were.
func (s *Store) clearLocked(e *entry) int {
	n := len(e.tickets)
	for len(e.tickets) > 0 {
		s.removeLocked(e, 0)
	}
	return n
}

func (s *Store) removeLocked(e *entry, i int) {
	s.bytes -= e.tickets[i].size
	e.tickets = slices.Delete(e.tickets, i, i+1)
}

// addLocked stores t as the newest ticket of e, which is the last used entry.
func (s *Store) addLocked(e *entry, t *ticket) {
	for i := len(e.tickets) - 1; i >= 0; i-- {
		// A newer session of TLS 1.2 replaces the older one, and so does a
		// ticket that the server sends again.
		if old := e.tickets[i]; old.reusable && t.reusable || sameTicket(old, t) {
			s.removeLocked(e, i)
		}
	}
	for len(e.tickets) >= s.cfg.MaxTickets {
		s.removeLocked(e, 0)
	}
	e.tickets = append(e.tickets, t)
	s.bytes += t.size
	for s.bytes > s.cfg.MaxBytes && s.recent.Len() > 1 {
		s.dropLocked(s.oldestLocked())
	}
	for s.bytes > s.cfg.MaxBytes && len(e.tickets) > 0 {
		s.removeLocked(e, 0)
	}
}

func sameTicket(a, b *ticket) bool {
	label, _, _ := a.state.ResumptionState()
	other, _, _ := b.state.ResumptionState()
	return bytes.Equal(label, other)
}

// dropExpiredLocked forgets what can never be offered again.
func (s *Store) dropExpiredLocked(e *entry, now time.Time) {
	for i := len(e.tickets) - 1; i >= 0; i-- {
		if !now.Before(e.tickets[i].ends()) {
			s.removeLocked(e, i)
		}
	}
}

// newest is the ticket that the next handshake would get, by its index; -1 if
// there is none.
func (e *entry) newest(now time.Time) int {
	for i := len(e.tickets) - 1; i >= 0; i-- {
		if e.tickets[i].usable(now) {
			return i
		}
	}
	return -1
}

// Expiring returns the keys whose newest ticket has less than share (0 to 1) of
// its life left, or just none left, and that were used lately: within an hour or
// within the life of that ticket, whichever is longer. The owner opens a
// connection for each, with [Store.Refresh], to get new tickets. A key without
// any ticket is not among them: its server may give none.
func (s *Store) Expiring(now time.Time, share float64) []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []Key
	for el := s.recent.Front(); el != nil; el = el.Next() {
		e := el.Value.(*entry)
		if i := e.lastFree(); i >= 0 && e.expiring(e.tickets[i], now, share) {
			keys = append(keys, e.key)
		}
	}
	return keys
}

// lastFree is the newest ticket, expired or not, that is not parked.
func (e *entry) lastFree() int {
	for i := len(e.tickets) - 1; i >= 0; i-- {
		if t := e.tickets[i]; t.reusable || !t.parked {
			return i
		}
	}
	return -1
}

func (e *entry) expiring(t *ticket, now time.Time, share float64) bool {
	life := t.ends().Sub(t.received)
	if now.Sub(e.used) > max(life, lately) {
		return false
	}
	return float64(t.ends().Sub(now)) < share*float64(life)
}

// A KeyState is what the Store knows about one key, without secrets. Ages and
// lifetimes are those of tickets that may be offered now, 0 without any.
type KeyState struct {
	Key     Key
	Tickets int // that may be offered now
	Parked  int // in the file, for the next process
	Used    time.Time
	Counts  Counts

	NewestAge, OldestAge      time.Duration
	LongestLeft, ShortestLeft time.Duration
	Bytes                     int // of all its tickets, encoded
	FullNext                  int // so many next handshakes take no ticket, after failures
}

// State returns what is known about each key, the last used one first.
func (s *Store) State() []KeyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	states := make([]KeyState, 0, len(s.entries))
	for el := s.recent.Front(); el != nil; el = el.Next() {
		states = append(states, el.Value.(*entry).state(now))
	}
	return states
}

func (e *entry) state(now time.Time) KeyState {
	k := KeyState{Key: e.key, Used: e.used, Counts: e.counts, FullNext: e.full}
	for _, t := range e.tickets { // the oldest first
		k.Bytes += t.size
		if t.parked && now.Before(t.ends()) {
			k.Parked++
		}
		if !t.usable(now) {
			continue
		}
		left := t.ends().Sub(now)
		if k.Tickets == 0 {
			k.OldestAge, k.ShortestLeft = now.Sub(t.received), left
		}
		k.NewestAge = now.Sub(t.received)
		k.LongestLeft, k.ShortestLeft = max(k.LongestLeft, left), min(k.ShortestLeft, left)
		k.Tickets++
	}
	return k
}

// Flush forgets the tickets of a server name, or all for "", and returns how
// many there were. Counters stay. Connections that are open may still bring new
// tickets, and a file that was saved stays until the next Save.
func (s *Store) Flush(serverName string) int {
	serverName = strings.ToLower(serverName)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, e := range s.entries {
		if serverName == "" || e.key.ServerName == serverName {
			n += s.clearLocked(e)
		}
	}
	return n
}
