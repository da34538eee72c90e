// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// hostsCheckEvery is how long a read of the hosts file is trusted before
	// the file is looked at again: under the 5 s within which a change must show.
	hostsCheckEvery = 2 * time.Second
	// hostsMaxBytes bounds memory; block lists kept as hosts files stay under it.
	hostsMaxBytes = 16 << 20
)

var errHostsTooLarge = fmt.Errorf("hosts file is over %d bytes: make it smaller", hostsMaxBytes)

// Hosts answers names from a hosts file and sees the file's changes on use.
// It has no goroutine and is safe for concurrent use.
type Hosts struct {
	path string

	reading sync.Mutex // held while the file is looked at
	state   atomic.Pointer[hostsState]
}

// A hostsState is what is known of the file. It is never changed.
type hostsState struct {
	names   map[string][]netip.Addr
	checked time.Time
	modTime time.Time
	size    int64
}

// NewHosts returns a Hosts over the file at path, which is first read by Lookup.
func NewHosts(path string) *Hosts {
	h := &Hosts{path: path}
	h.state.Store(new(hostsState))
	return h
}

// Lookup returns all addresses of both families that the file gives name, in
// the file's order, or none. If the file cannot be read it answers from the
// last good reading, beside the error. The caller may keep the slice.
func (h *Hosts) Lookup(name string) ([]netip.Addr, error) {
	addrs, _, err := h.shared(hostKey(name))
	return slices.Clone(addrs), err
}

// shared is Lookup by key, without a copy. It reports whether this call looked at
// the file; whoever comes meanwhile is answered from the last reading.
func (h *Hosts) shared(key string) (addrs []netip.Addr, checked bool, err error) {
	now := time.Now()
	s := h.state.Load()
	switch {
	case s.checked.IsZero():
		h.reading.Lock() // the first reading is waited for
	case now.Sub(s.checked) < hostsCheckEvery || !h.reading.TryLock():
		return s.names[key], false, nil
	}
	defer h.reading.Unlock()
	if s = h.state.Load(); s.checked.IsZero() || now.Sub(s.checked) >= hostsCheckEvery {
		checked = true
		s, err = h.refresh(s, now)
		h.state.Store(s)
	}
	return s.names[key], checked, err
}

// refresh returns what is known of the file now.
func (h *Hosts) refresh(old *hostsState, now time.Time) (*hostsState, error) {
	s := *old
	s.checked = now
	st, err := os.Stat(h.path)
	if os.IsNotExist(err) {
		// A machine without the file has no entries; that is no fault.
		return &hostsState{checked: now}, nil
	}
	if err != nil {
		return &s, fmt.Errorf("read hosts file: %w", err)
	}
	if s.names != nil && st.ModTime().Equal(s.modTime) && st.Size() == s.size {
		return &s, nil
	}
	if st.Size() > hostsMaxBytes {
		return &s, errHostsTooLarge // not worth reading
	}
	names, err := readHosts(h.path)
	if err != nil {
		return &s, err
	}
	s.names, s.modTime, s.size = names, st.ModTime(), st.Size()
	return &s, nil
}

func readHosts(path string) (map[string][]netip.Addr, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read hosts file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, hostsMaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read hosts file: %w", err)
	}
	if len(b) > hostsMaxBytes {
		return nil, errHostsTooLarge
	}
	return parseHosts(b), nil
}

// parseHosts skips lines whose address does not parse, as libc does.
func parseHosts(b []byte) map[string][]netip.Addr {
	names := make(map[string][]netip.Addr)
	for line := range bytes.Lines(b) {
		line, _, _ = bytes.Cut(line, []byte("#"))
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		addr, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		addr = addr.Unmap()
		for _, name := range fields[1:] {
			key := hostKey(name)
			if key != "" && !slices.Contains(names[key], addr) {
				names[key] = append(names[key], addr)
			}
		}
	}
	return names
}

// hostKey folds case and the root's dot: names compare without either
// (RFC 4343 section 3).
func hostKey(name string) string {
	return strings.ToLower(strings.TrimSuffix(name, "."))
}
