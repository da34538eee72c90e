// SPDX-License-Identifier: Apache-2.0

package intercept

import "encoding/binary"

const typeAlert = 0x15

// An Alert looks in what a client sends for an alert in clear. OpenSSL sends one also
// in TLS 1.3, where it should be encrypted, because it has no other key yet when it has
// refused a certificate; crypto/tls cannot read it. The zero value is ready. It is owned
// by whoever reads.
type Alert struct {
	head  [recordHeader]byte
	have  int // of head
	left  int // of the record's content
	body  [2]byte
	got   int // of body
	found bool
	over  bool
}

// Watch is shown what came next.
func (a *Alert) Watch(p []byte) {
	for len(p) > 0 && !a.over {
		if a.have < recordHeader {
			n := copy(a.head[a.have:], p)
			if a.have, p = a.have+n, p[n:]; a.have < recordHeader {
				return
			}
			a.left = int(binary.BigEndian.Uint16(a.head[3:]))
		}
		n := min(a.left, len(p))
		if a.head[0] == typeAlert && int(binary.BigEndian.Uint16(a.head[3:])) == len(a.body) { // an encrypted one is longer
			a.got += copy(a.body[a.got:], p[:n])
			a.found = a.got == len(a.body)
			a.over = a.found
		}
		if a.left -= n; a.left == 0 {
			a.have, a.got = 0, 0
		}
		p = p[n:]
	}
}

// Stop ends the looking.
func (a *Alert) Stop() { a.over = true }

// Code is that of the alert, if there was one.
func (a *Alert) Code() (code uint8, ok bool) { return a.body[1], a.found }

// Distrust says whether an alert means that a certificate is not accepted (RFC 8446 §6.2).
func Distrust(code uint8) bool {
	switch code {
	case 42, // bad_certificate
		43, // unsupported_certificate
		44, // certificate_revoked
		45, // certificate_expired
		46, // certificate_unknown
		48: // unknown_ca
		return true
	}
	return false
}
