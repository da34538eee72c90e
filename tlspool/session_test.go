// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"testing"
	"time"
)

// realSession is the encoding of a session that Go's client got from Go's
// server, whose tickets live seven days.
func realSession(t testing.TB, version uint16) []byte {
	t.Helper()
	p := ecPKI()
	addr := serve(t, &tls.Config{Certificates: []tls.Certificate{p.cert(host)}, MaxVersion: version})
	s := New(Config{})
	mustDial(t, s, hostKey, addr, p.client(), false)
	e := s.entries[hostKey]
	if e == nil || len(e.tickets) != 1 {
		t.Fatalf("store has %+v", s.State())
	}
	_, state, err := e.tickets[0].state.ResumptionState()
	if err != nil {
		t.Fatal(err)
	}
	b, err := state.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGosEncodingOfSessionsIsTheKnownOne(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			b := realSession(t, version)
			e, ok := parseSession(b)
			if !ok {
				t.Fatalf("Go's encoding has changed: see SessionState in crypto/tls/ticket.go\n%x", b[:16])
			}
			if e.version != version {
				t.Errorf("version %x, want %x", e.version, version)
			}
			if age := time.Since(e.created); age < 0 || age > time.Minute {
				t.Errorf("created %v ago", age)
			}
			if version != tls.VersionTLS13 {
				return
			}
			if left := time.Until(e.useBy); left < maxLife-time.Minute || left > maxLife {
				t.Errorf("to be used within %v, the server said %v", left, maxLife)
			}
		})
	}
}

func TestAnEncodingThatIsNotTheKnownOneIsNotRead(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	good := encodeSession(tls.VersionTLS13, now, now.Add(time.Hour))
	end := len(good)
	set := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	late := make([]byte, 8)
	binary.BigEndian.PutUint64(late, uint64(now.Add(maxLife+time.Second).Unix()))
	tests := []struct {
		name string
		b    []byte
	}{
		{"empty", nil},
		{"cut", good[:end-1]},
		{"more at the end", append(bytes.Clone(good), 0)},
		{"a server's", set(2, 1)},
		{"another version", set(0, 3, 5)},
		{"a life over seven days", set(end-12, late...)},
		{"ends before it begins", set(end-12, 0, 0, 0, 0, 0, 0, 0, 1)},
		{"ends in a million years", set(end-12, 0x7f)},
		{"made in a million years", set(5, 0x7f)},
		{"TLS 1.2 with the end of 1.3", set(0, 3, 3)},
	}
	if _, ok := parseSession(good); !ok {
		t.Fatal("the good one is not read")
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if e, ok := parseSession(tt.b); ok {
				t.Errorf("read %+v", e)
			}
		})
	}
}

func FuzzSession(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	f.Add(encodeSession(tls.VersionTLS13, now, now.Add(time.Hour)))
	f.Add(encodeSession(tls.VersionTLS12, now, time.Time{}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parseSession(b)
		if !ok {
			return
		}
		if e.version == tls.VersionTLS13 && (e.useBy.Before(e.created) || e.useBy.Sub(e.created) > maxLife) {
			t.Errorf("from %v to %v", e.created, e.useBy)
		}
		// What we take for a session, Go must take for one too, unless a
		// certificate in it is none.
		state, err := tls.ParseSessionState(b)
		if err != nil {
			return
		}
		again, err := state.Bytes()
		if err != nil {
			return
		}
		if _, ok := parseSession(again); !ok {
			t.Errorf("not read once Go has written it again: %x", again)
		}
	})
}
