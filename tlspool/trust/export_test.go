// SPDX-License-Identifier: Apache-2.0

package trust

import "time"

// LoadClientCertAt is LoadClientCert with a clock.
func LoadClientCertAt(certFile, keyFile string, now func() time.Time) (*ClientCert, error) {
	return loadClientCert(certFile, keyFile, now)
}

// Verdicts counts those that are remembered.
func (v *Verifier) Verdicts() int {
	v.memory.mu.Lock()
	defer v.memory.mu.Unlock()
	return v.memory.order.Len()
}

// Look looks at the files as if a look were due.
func (s *Store) Look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookLocked(s.now())
}

// ParsePin is what New does with each pin.
func ParsePin(s string) (string, error) {
	p, err := parsePin(s)
	return p.String(), err
}

const (
	MaxVerdicts = maxVerdicts
	LookEvery   = lookEvery
)
