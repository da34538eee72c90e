// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"crypto/tls"
	"testing"
	"time"
)

func TestReadTickets(t *testing.T) {
	const (
		modern = "\x04\x00\x00\x18\x00\x00\x1c\x20age!\x01n\x00\x02tt\x00\x08\x00\x2a\x00\x04\x00\x00\x40\x00"
		old    = "\x04\x00\x00\x09\x00\x00\x01\x2c\x00\x03ttt"
		none   = "\x04\x00\x00\x06\x00\x00\x00\x00\x00\x00"
		update = "\x18\x00\x00\x01\x00"
	)
	for _, tt := range []struct {
		name, messages string
		modern         bool
		want           []ticket
	}{
		{"TLS 1.3", modern + modern, true, []ticket{{2 * time.Hour, 2, 16384}, {2 * time.Hour, 2, 16384}}},
		{"another key after it", modern + update + modern, true, []ticket{{2 * time.Hour, 2, 16384}}},
		{"TLS 1.2", "\x0e\x00\x00\x00" + old, false, []ticket{{5 * time.Minute, 3, 0}}},
		{"TLS 1.2 without", none, false, nil},
		{"cut", modern[:20], true, nil},
	} {
		got := readTickets([]byte(tt.messages), tt.modern)
		if len(got) != len(tt.want) || len(got) > 0 && got[0] != tt.want[0] {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// What follows the change of ciphers is no message.
func TestEncryptedRecordsAreNotRead(t *testing.T) {
	const record = "\x16\x03\x03\x00\x0d\x04\x00\x00\x09\x00\x00\x01\x2c\x00\x03ttt"
	r := &recording{heard: []byte(record + "\x14\x03\x03\x00\x01\x01" + record)}
	if got := r.tickets(tls.ConnectionState{Version: tls.VersionTLS12}); len(got) != 1 {
		t.Errorf("%d tickets, want 1", len(got))
	}
}

// FuzzRecording reads whatever a server may send.
func FuzzRecording(f *testing.F) {
	f.Add([]byte("\x16\x03\x03\x00\x0d\x04\x00\x00\x09\x00\x00\x01\x2c\x00\x03ttt"), uint16(tls.VersionTLS12))
	f.Add([]byte("\x17\x03\x03\x00\x02ab"), uint16(tls.VersionTLS13))
	f.Fuzz(func(t *testing.T, heard []byte, version uint16) {
		r := &recording{heard: heard, secret: make([]byte, 32)}
		if got := r.tickets(tls.ConnectionState{Version: version, CipherSuite: tls.TLS_AES_128_GCM_SHA256}); len(got) > maxTickets {
			t.Errorf("%d tickets", len(got))
		}
		if got := readTickets(heard, true); len(got) > maxTickets {
			t.Errorf("%d tickets", len(got))
		}
	})
}
