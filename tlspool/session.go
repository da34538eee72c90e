// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"crypto/tls"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

const (
	maxLife     = 7 * 24 * time.Hour // RFC 8446 section 4.6.1
	tls12Life   = 24 * time.Hour     // RFC 5246 appendix F.1.4
	unknownLife = time.Hour          // guess, for an encoding that is not the known one

	// maxTicket bounds a ticket with its session: three RSA certificates, a
	// staple and a ticket take 6 KiB, chains of ten with Go's tickets 40 KiB.
	maxTicket = 64 << 10 // 64 KiB
)

// An encoding is what the store reads from tls.SessionState.Bytes.
type encoding struct {
	version uint16
	created time.Time
	useBy   time.Time // TLS 1.3 only
}

// parseSession reads the encoding of a client's session as Go 1.27 writes it
// (the comment in crypto/tls/ticket.go). It is Go's to change: ok is false for
// anything that does not look exactly as expected, also for more bytes at the
// end.
func parseSession(b []byte) (e encoding, ok bool) {
	const client = 2
	s := cryptobyte.String(b)
	var kind, ems, early uint8
	var suite uint16
	var created uint64
	var secret, skipped cryptobyte.String
	if !s.ReadUint16(&e.version) ||
		!s.ReadUint8(&kind) || kind != client ||
		!s.ReadUint16(&suite) ||
		!s.ReadUint64(&created) ||
		!s.ReadUint8LengthPrefixed(&secret) || secret.Empty() ||
		!s.ReadUint24LengthPrefixed(&skipped) || // Extra
		!s.ReadUint8(&ems) || ems > 1 ||
		!s.ReadUint8(&early) || early > 1 ||
		!s.ReadUint24LengthPrefixed(&skipped) || // the peer's certificates
		!s.ReadUint24LengthPrefixed(&skipped) { // the verified chains
		return encoding{}, false
	}
	if early == 1 && !s.ReadUint8LengthPrefixed(&skipped) { // ALPN
		return encoding{}, false
	}
	const maxSeconds = 1 << 40 // what time.Time and its Sub can hold, and more
	if created > maxSeconds {
		return encoding{}, false
	}
	e.created = time.Unix(int64(created), 0)
	switch {
	case e.version == tls.VersionTLS13:
		var useBy uint64
		var ageAdd uint32
		if !s.ReadUint64(&useBy) || !s.ReadUint32(&ageAdd) || useBy > maxSeconds {
			return encoding{}, false
		}
		e.useBy = time.Unix(int64(useBy), 0)
		if life := e.useBy.Sub(e.created); life < 0 || life > maxLife {
			return encoding{}, false
		}
	case e.version >= tls.VersionTLS10 && e.version <= tls.VersionTLS12:
		var curve uint16
		if !s.ReadUint16(&curve) {
			return encoding{}, false
		}
	default:
		return encoding{}, false
	}
	if !s.Empty() {
		return encoding{}, false
	}
	return e, true
}

// A ticket is one stored session. Its fields but parked do not change.
type ticket struct {
	state    *tls.ClientSessionState
	size     int  // bytes, encoded
	reusable bool // TLS 1.2
	received time.Time
	end      time.Time // by its own lifetime
	verdict  *verdict  // shared by all tickets of one connection
	parked   bool      // in the file, and so not to be offered by this process
}

// A verdict is how long the check of a certificate chain holds.
type verdict struct {
	limited bool
	until   time.Time
}

// newTicket reads what is needed of a session received at now; nil if it cannot
// be kept.
func newTicket(cs *tls.ClientSessionState, now time.Time, v *verdict) *ticket {
	label, state, err := cs.ResumptionState()
	if err != nil || state == nil || len(label) == 0 {
		return nil
	}
	b, err := state.Bytes()
	if err != nil || len(b)+len(label) > maxTicket {
		return nil
	}
	t := &ticket{state: cs, size: len(b) + len(label), received: now, end: now.Add(unknownLife), verdict: v}
	if e, ok := parseSession(b); ok {
		t.reusable = e.version < tls.VersionTLS13
		t.end = e.useBy
		if t.reusable {
			t.end = now.Add(tls12Life)
		}
	}
	return t
}

// ends is when the ticket may no longer be offered.
func (t *ticket) ends() time.Time {
	if t.limitedByVerdict() {
		return t.verdict.until
	}
	return t.end
}

func (t *ticket) limitedByVerdict() bool { return t.verdict.limited && t.verdict.until.Before(t.end) }

// usable reports whether the ticket may be offered. A session of TLS 1.2 may
// also while the file has it.
func (t *ticket) usable(now time.Time) bool {
	return now.Before(t.ends()) && (t.reusable || !t.parked)
}
