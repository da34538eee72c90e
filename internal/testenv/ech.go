// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"testing"
)

// ECHConfig makes an ECHConfig (RFC 9849 §4) for a new X25519 key.
func ECHConfig(t testing.TB, id byte, publicName string) (config []byte, key *ecdh.PrivateKey) {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte{id, 0, 0x20} // DHKEM(X25519, HKDF-SHA256)
	body = binary.BigEndian.AppendUint16(body, 32)
	body = append(body, key.PublicKey().Bytes()...)
	body = append(body, 0, 4, 0, 1, 0, 1)          // HKDF-SHA256 with AES-128-GCM
	body = append(body, 64, byte(len(publicName))) // the longest name
	body = append(body, publicName...)
	body = append(body, 0, 0) // no extensions
	config = binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(body)))
	return append(config, body...), key
}

// ECHList is the ECHConfigList with that one.
func ECHList(config []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(config))), config...)
}
