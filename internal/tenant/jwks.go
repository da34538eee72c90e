// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/golang-jwt/jwt/v5"
)

const (
	maxKeys       = 64   // guess: providers have two to ten
	minRSABits    = 2048 // RFC 7518 §3.3
	maxRSABits    = 8192 // what a larger one costs to use is for whoever sends tokens to decide
	minSecretSize = 32   // RFC 7518 §3.2, for HS256
)

// A key verifies, by the algorithms that are for it and no others: what a token
// names as its algorithm never chooses how a key is used.
type key struct {
	id         string
	algorithms []string
	value      any
}

// A keySet is all keys at one time. It does not change.
type keySet struct {
	keys       []*key
	algorithms []string // of all of them
}

func newKeySet(keys []*key) *keySet {
	s := &keySet{keys: keys}
	for _, k := range keys {
		s.algorithms = append(s.algorithms, k.algorithms...)
	}
	slices.Sort(s.algorithms)
	s.algorithms = slices.Compact(s.algorithms)
	return s
}

// forToken returns the keys that a token may have been signed with. known is
// false if it names one that there is not.
func (s *keySet) forToken(alg, id string) (set jwt.VerificationKeySet, known bool) {
	for _, k := range s.keys {
		if id != "" && k.id != "" && k.id != id {
			continue
		}
		known = true
		if slices.Contains(k.algorithms, alg) {
			set.Keys = append(set.Keys, k.value)
		}
	}
	return set, known
}

var (
	rsaAlgorithms    = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	secretAlgorithms = []string{"HS256", "HS384", "HS512"}
)

// newKey makes a key of a public one and checks that it is fit to be one.
func newKey(id, alg string, public any) (*key, error) {
	var allowed []string
	switch p := public.(type) {
	case *rsa.PublicKey:
		if n := p.N.BitLen(); n < minRSABits || n > maxRSABits {
			return nil, fmt.Errorf("an RSA key of %d bits: %d to %d are accepted", n, minRSABits, maxRSABits)
		}
		if p.E < 3 || p.E%2 == 0 {
			return nil, errors.New("an RSA key whose exponent is none")
		}
		allowed = rsaAlgorithms
	case *ecdsa.PublicKey:
		switch p.Curve {
		case elliptic.P256():
			allowed = []string{"ES256"}
		case elliptic.P384():
			allowed = []string{"ES384"}
		case elliptic.P521():
			allowed = []string{"ES512"}
		default:
			return nil, errors.New("a key on a curve that is not accepted")
		}
		if _, err := p.ECDH(); err != nil { // is the point on the curve?
			return nil, fmt.Errorf("an EC key that is none: %w", err)
		}
	case ed25519.PublicKey:
		if len(p) != ed25519.PublicKeySize {
			return nil, errors.New("an Ed25519 key that is not 32 bytes")
		}
		allowed = []string{"EdDSA"}
	default:
		return nil, fmt.Errorf("a key of type %T: RSA, EC and Ed25519 are accepted", public)
	}
	return bound(&key{id: id, algorithms: allowed, value: public}, alg)
}

func secretKey(id, alg string, secret []byte) (*key, error) {
	if len(secret) < minSecretSize {
		return nil, fmt.Errorf("a secret of %d bytes: %d are needed (RFC 7518 §3.2)", len(secret), minSecretSize)
	}
	return bound(&key{id: id, algorithms: secretAlgorithms, value: secret}, alg)
}

// bound narrows a key to the one algorithm that it is said to be for.
func bound(k *key, alg string) (*key, error) {
	switch {
	case alg == "":
	case slices.Contains(k.algorithms, alg):
		k.algorithms = []string{alg}
	default:
		return nil, fmt.Errorf("its alg %.20q is not for such a key", alg)
	}
	return k, nil
}

// parseKeys reads PEM or a JWK set. Secrets are taken from files only.
func parseKeys(text []byte, local bool) ([]*key, error) {
	var keys []*key
	var err error
	if t := bytes.TrimSpace(text); len(t) > 0 && t[0] == '{' {
		keys, err = parseJWKs(t, local)
	} else if local {
		keys, err = parsePEM(t)
	} else {
		err = errors.New("is no JWK set")
	}
	switch {
	case err != nil:
		return nil, err
	case len(keys) == 0:
		return nil, errors.New("has no key to verify with")
	case len(keys) > maxKeys:
		return nil, fmt.Errorf("has %d keys, more than %d", len(keys), maxKeys)
	}
	return keys, nil
}

func parsePEM(text []byte) ([]*key, error) {
	var keys []*key
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			if len(bytes.TrimSpace(text)) > 0 {
				return nil, errors.New("is neither PEM nor a JWK set")
			}
			return keys, nil
		}
		var public any
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			public, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			public, err = x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			var c *x509.Certificate
			if c, err = x509.ParseCertificate(block.Bytes); err == nil {
				public = c.PublicKey
			}
		default:
			return nil, fmt.Errorf("has a %.40q: public keys are needed", block.Type)
		}
		var k *key
		if err == nil {
			k, err = newKey("", "", public)
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
}

// A jwk is a key of a JWK set (RFC 7517 §4, RFC 7518 §6, RFC 8037 §2).
type jwk struct {
	Kty    string   `json:"kty"`
	Use    string   `json:"use"`
	KeyOps []string `json:"key_ops"`
	Alg    string   `json:"alg"`
	Kid    string   `json:"kid"`
	Crv    string   `json:"crv"`
	N      string   `json:"n"`
	E      string   `json:"e"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
	K      string   `json:"k"`
}

// parseJWKs leaves out keys that are for something else, that we do not know or
// cannot use (RFC 7517 §5); if none is left, it says what is wrong with the first.
func parseJWKs(text []byte, local bool) ([]*key, error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errors.New("is no JWK set")
	}
	var keys []*key
	var first error
	for i, j := range set.Keys {
		if j.Use != "" && j.Use != "sig" || len(j.KeyOps) > 0 && !slices.Contains(j.KeyOps, "verify") {
			continue
		}
		k, err := j.key(local)
		if err != nil && first == nil {
			first = fmt.Errorf("key %d of the set: %w", i+1, err)
		}
		if k != nil {
			keys = append(keys, k)
		}
	}
	if len(keys) > 0 {
		first = nil
	}
	return keys, first
}

// key is nil for one that is of no use here.
func (j *jwk) key(local bool) (*key, error) {
	switch j.Kty {
	case "RSA":
		n, err := octets(j.N)
		if err != nil {
			return nil, err
		}
		e, err := octets(j.E)
		if err != nil || len(e) > 4 {
			return nil, errors.New("an RSA key whose exponent is none")
		}
		return newKey(j.Kid, j.Alg, &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())})
	case "EC":
		curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[j.Crv]
		if curve == nil {
			return nil, nil
		}
		x, err := octets(j.X)
		if err != nil {
			return nil, err
		}
		y, err := octets(j.Y)
		if err != nil {
			return nil, err
		}
		size := (curve.Params().BitSize + 7) / 8
		if len(x) != size || len(y) != size { // RFC 7518 §6.2.1.2
			return nil, errors.New("an EC key with coordinates of a wrong length")
		}
		public, err := ecdsa.ParseUncompressedPublicKey(curve, append(append([]byte{4}, x...), y...))
		if err != nil {
			return nil, fmt.Errorf("an EC key that is none: %w", err)
		}
		return newKey(j.Kid, j.Alg, public)
	case "OKP":
		if j.Crv != "Ed25519" {
			return nil, nil
		}
		x, err := octets(j.X)
		if err != nil {
			return nil, err
		}
		if j.Alg == "Ed25519" { // RFC 9864's name for it
			j.Alg = "EdDSA"
		}
		return newKey(j.Kid, j.Alg, ed25519.PublicKey(x))
	case "oct":
		if !local { // what a server tells everybody is no secret
			return nil, nil
		}
		k, err := octets(j.K)
		if err != nil {
			return nil, err
		}
		return secretKey(j.Kid, j.Alg, k)
	}
	return nil, nil
}

func octets(s string) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) == 0 {
		return nil, errors.New("a key with a value that is not base64url")
	}
	return b, nil
}
