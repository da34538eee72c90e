// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strings"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/crypto/cryptobyte"
)

// crypto/tls keeps to itself what a server says of its tickets, so that it is
// read once more from the bytes of the connection. Its traffic secret never
// leaves the recording.

// A recording is what one connection heard, and its server's traffic secret.
type recording struct {
	heard  []byte
	secret []byte // TLS 1.3 only
}

// Write takes lines of the key log, and keeps the one that matters here.
func (r *recording) Write(line []byte) (int, error) {
	if f := strings.Fields(string(line)); len(f) == 3 && f[0] == "SERVER_TRAFFIC_SECRET_0" {
		r.secret, _ = hex.DecodeString(f[2]) // crypto/tls wrote it
	}
	return len(line), nil
}

// forget wipes the secret.
func (r *recording) forget() { clear(r.secret) }

// A ticket is what a server says of one.
type ticket struct {
	lifetime  time.Duration // 0: TLS 1.2's server leaves it to the client
	bytes     int
	earlyData uint32 // bytes that may be sent with it before the handshake is over
}

// tickets returns those that the server sent in this connection.
func (r *recording) tickets(s tls.ConnectionState) []ticket {
	if s.Version == tls.VersionTLS13 {
		return readTickets(r.decrypt(s.CipherSuite), true)
	}
	var clear []byte
	eachRecord(r.heard, func(kind byte, _, body []byte) bool {
		if kind == recordHandshake {
			clear = append(clear, body...)
		}
		return kind != recordChangeCipherSpec // encrypted from here on
	})
	return readTickets(clear, false)
}

// The types of records and messages that matter (RFC 8446 sections 4 and 5.1).
const (
	recordChangeCipherSpec = 20
	recordHandshake        = 22
	recordData             = 23

	messageTicket    = 4
	messageKeyUpdate = 24
	extensionEarly   = 42
)

// eachRecord hands over whole records until f returns false.
func eachRecord(stream []byte, f func(kind byte, head, body []byte) bool) {
	for len(stream) >= 5 {
		n := 5 + int(binary.BigEndian.Uint16(stream[3:]))
		if len(stream) < n || !f(stream[0], stream[:5], stream[5:n]) {
			return
		}
		stream = stream[n:]
	}
}

// decrypt returns the handshake messages that came after the handshake. Records
// of the handshake itself have other keys, fail and are passed by.
func (r *recording) decrypt(suite uint16) (messages []byte) {
	aead, iv := trafficKey(suite, r.secret)
	if aead == nil {
		return nil
	}
	seq := uint64(0)
	eachRecord(r.heard, func(kind byte, head, body []byte) bool {
		if kind != recordData {
			return true
		}
		nonce := bytes.Clone(iv)
		tail := nonce[len(nonce)-8:]
		binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^seq)
		plain, err := aead.Open(nil, nonce, body, head)
		if err != nil {
			return seq == 0
		}
		seq++
		plain = bytes.TrimRight(plain, "\x00") // padding
		if n := len(plain); n > 0 && plain[n-1] == recordHandshake {
			messages = append(messages, plain[:n-1]...)
		}
		return true
	})
	return messages
}

// trafficKey derives the key and the nonce's base (RFC 8446 section 7.3).
func trafficKey(suite uint16, secret []byte) (cipher.AEAD, []byte) {
	var h func() hash.Hash = sha256.New
	size := 16
	switch suite {
	case tls.TLS_AES_256_GCM_SHA384:
		h, size = sha512.New384, 32
	case tls.TLS_CHACHA20_POLY1305_SHA256:
		size = 32
	}
	expand := func(label string, n int) []byte {
		var info cryptobyte.Builder
		info.AddUint16(uint16(n))
		info.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte("tls13 " + label)) })
		info.AddUint8(0)
		out, err := hkdf.Expand(h, secret, string(info.BytesOrPanic()), n)
		if err != nil {
			return nil
		}
		return out
	}
	key, iv := expand("key", size), expand("iv", 12)
	if len(secret) == 0 || key == nil || iv == nil {
		return nil, nil
	}
	if suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
		aead, err := chacha20poly1305.New(key)
		if err != nil {
			return nil, nil
		}
		return aead, iv
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, nil
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, nil
	}
	return aead, iv
}

// readTickets finds the tickets in handshake messages of TLS 1.3 (RFC 8446
// section 4.6.1) or of an older version (RFC 5077 section 3.3).
func readTickets(messages []byte, modern bool) (out []ticket) {
	rest := cryptobyte.String(messages)
	var kind uint8
	var body cryptobyte.String
	for rest.ReadUint8(&kind) && rest.ReadUint24LengthPrefixed(&body) && kind != messageKeyUpdate && len(out) < maxTickets {
		var seconds uint32
		var label cryptobyte.String
		if kind != messageTicket || !body.ReadUint32(&seconds) {
			continue
		}
		t := ticket{lifetime: time.Duration(seconds) * time.Second}
		if modern {
			var nonce cryptobyte.String
			if !body.Skip(4) || !body.ReadUint8LengthPrefixed(&nonce) {
				continue
			}
		}
		if !body.ReadUint16LengthPrefixed(&label) || len(label) == 0 {
			continue // TLS 1.2's way to say none
		}
		t.bytes = len(label)
		var extensions, ext cryptobyte.String
		var id uint16
		if modern && body.ReadUint16LengthPrefixed(&extensions) {
			for extensions.ReadUint16(&id) && extensions.ReadUint16LengthPrefixed(&ext) {
				if id == extensionEarly && !ext.ReadUint32(&t.earlyData) {
					break
				}
			}
		}
		out = append(out, t)
	}
	return out
}
