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
	"time"
)

const (
	// hostsCheckEvery is how long a read of the hosts file is trusted before
	// the file is looked at again: under the 5 s within which a change must show.
	hostsCheckEvery = 2 * time.Second
	// hostsMaxBytes bounds memory; block lists kept as hosts files stay under it.
	hostsMaxBytes = 16 << 20
)

// Hosts answers names from a hosts file and sees the file's changes on use.
// It has no goroutine and is safe for concurrent use.
type Hosts struct {
	path string

	mu      sync.Mutex
	names   map[string][]netip.Addr
	checked time.Time
	modTime time.Time
	size    int64
}

// NewHosts returns a Hosts over the file at path, which is first read by Lookup.
func NewHosts(path string) *Hosts { return &Hosts{path: path} }

// Lookup returns all addresses of both families that the file gives name, in
// the file's order, or none. If the file cannot be read it answers from the
// last good reading, beside the error. The caller may keep the slice.
func (h *Hosts) Lookup(name string) ([]netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.refresh(time.Now())
	return slices.Clone(h.names[hostKey(name)]), err
}

func (h *Hosts) refresh(now time.Time) error {
	if !h.checked.IsZero() && now.Sub(h.checked) < hostsCheckEvery {
		return nil
	}
	h.checked = now
	st, err := os.Stat(h.path)
	if os.IsNotExist(err) {
		// A machine without the file has no entries; that is no fault.
		h.names, h.modTime, h.size = nil, time.Time{}, 0
		return nil
	}
	if err != nil {
		return fmt.Errorf("read hosts file: %w", err)
	}
	if h.names != nil && st.ModTime().Equal(h.modTime) && st.Size() == h.size {
		return nil
	}
	names, err := readHosts(h.path)
	if err != nil {
		return err
	}
	h.names, h.modTime, h.size = names, st.ModTime(), st.Size()
	return nil
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
		return nil, fmt.Errorf("hosts file is over %d bytes: make it smaller", hostsMaxBytes)
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
