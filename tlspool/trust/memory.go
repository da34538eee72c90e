// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"container/list"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"sync"
	"time"
)

type verdictHash [sha256.Size]byte

// verdictKey is a hash of all that a verdict depends on, but the time. Each part has
// its length before it, so that no two lists of parts are the same bytes.
func verdictKey(id, serverName string, cs tls.ConnectionState) (key verdictHash) {
	h := sha256.New()
	var size [8]byte
	part := func(b []byte) {
		binary.BigEndian.PutUint64(size[:], uint64(len(b)))
		h.Write(size[:])
		h.Write(b)
	}
	part([]byte(id))
	part([]byte(canonical(serverName)))
	part(cs.OCSPResponse)
	for _, cert := range cs.PeerCertificates {
		part(cert.Raw)
	}
	h.Sum(key[:0])
	return key
}

// kept is a verdict in memory.
type kept struct {
	since, until time.Time
	reports      []Reason
}

// memory holds the last verdicts, the most recently used first.
type memory struct {
	max int

	mu    sync.Mutex // guards the fields below
	order list.List  // of *remembered
	byKey map[verdictHash]*list.Element
}

type remembered struct {
	key verdictHash
	kept
}

func newMemory(limit int) *memory {
	return &memory{max: limit, byKey: make(map[verdictHash]*list.Element)}
}

// get returns the verdict that is in force. One made later than now is none: the
// clock was put back, and what was valid then need not be valid yet.
func (m *memory) get(key verdictHash, now time.Time) (kept, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.byKey[key]
	if !ok {
		return kept{}, false
	}
	r := e.Value.(*remembered)
	if now.Before(r.since) || !now.Before(r.until) {
		m.order.Remove(e)
		delete(m.byKey, key)
		return kept{}, false
	}
	m.order.MoveToFront(e)
	return r.kept, true
}

func (m *memory) put(key verdictHash, k kept) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.byKey[key]; ok {
		e.Value.(*remembered).kept = k
		m.order.MoveToFront(e)
		return
	}
	m.byKey[key] = m.order.PushFront(&remembered{key, k})
	for m.order.Len() > m.max {
		last := m.order.Back()
		m.order.Remove(last)
		delete(m.byKey, last.Value.(*remembered).key)
	}
}
