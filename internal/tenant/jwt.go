// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maxRemembered is how many JWTs are remembered. A tenant's apps share few.
const maxRemembered = 4096

// A verifier checks JWTs and remembers those that were good.
type verifier struct {
	cfg  Validation
	keys *Keys

	mu       sync.RWMutex // guards the fields below
	by       *keySet      // with which all of the remembered were verified
	now, old map[[sha256.Size]byte]verified
}

// verified is what a good JWT said.
type verified struct {
	tenant      *Tenant
	from, until time.Time
}

func newVerifier(cfg Validation, keys *Keys) *verifier { return &verifier{cfg: cfg, keys: keys} }

var (
	errKey = errors.New("names a key that is not known")
	errAlg = errors.New("an algorithm that no key is for")
)

// byJWT finds the tenant of a JWT.
func (b *Book) byJWT(token string, now time.Time) (*Tenant, Reason) {
	v := b.jwt
	set := v.keys.current()
	if set == nil {
		v.keys.wake()
		return nil, NoKeys
	}
	hash := sha256.Sum256([]byte(token))
	if m, ok := v.recall(hash, set); ok && !now.Before(m.from) && now.Before(m.until) {
		return m.tenant, ""
	}
	claims, reason := v.parse(token, set, now)
	if reason != "" {
		return nil, reason
	}
	t, reason := b.byClaims(claims)
	if reason != "" {
		return nil, reason
	}
	m := verified{tenant: t, from: now}
	expires, err := claims.GetExpirationTime()
	if err != nil || expires == nil {
		return nil, Malformed
	}
	m.until = expires.Add(v.cfg.Skew)
	v.remember(hash, set, m)
	return t, ""
}

// parse verifies a JWT and returns what it says.
func (v *verifier) parse(token string, set *keySet, now time.Time) (jwt.MapClaims, Reason) {
	opts := []jwt.ParserOption{
		jwt.WithValidMethods(set.algorithms), jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithStrictDecoding(),
		jwt.WithLeeway(v.cfg.Skew), jwt.WithTimeFunc(func() time.Time { return now }), jwt.WithIssuer(v.cfg.Issuer),
	}
	if len(v.cfg.Audience) > 0 {
		opts = append(opts, jwt.WithAudience(v.cfg.Audience...))
	}
	claims := jwt.MapClaims{}
	_, err := jwt.NewParser(opts...).ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		if _, critical := t.Header["crit"]; critical { // we know none (RFC 7515 §4.1.11)
			return nil, errAlg
		}
		kid, _ := t.Header["kid"].(string)
		keys, known := set.forToken(t.Method.Alg(), kid)
		switch {
		case !known:
			v.keys.wake()
			return nil, errKey
		case len(keys.Keys) == 0:
			return nil, errAlg
		}
		return keys, nil
	})
	return claims, reasonOf(err)
}

// reasonOf puts the library's errors into our words.
func reasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	for _, r := range [...]struct {
		err    error
		reason Reason
	}{
		{errKey, Key}, {errAlg, Unsigned}, {jwt.ErrTokenMalformed, Malformed},
		{jwt.ErrTokenExpired, Expired}, {jwt.ErrTokenNotValidYet, Early}, {jwt.ErrTokenUsedBeforeIssued, Early},
		{jwt.ErrTokenInvalidClaims, Claims}, {jwt.ErrTokenSignatureInvalid, Signature},
	} {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	return Unsigned // an algorithm that the library does not know
}

// byClaims finds the one tenant whose claims all stand in a JWT.
func (b *Book) byClaims(claims jwt.MapClaims) (*Tenant, Reason) {
	var found *Tenant
	for _, t := range b.claimed {
		if !fit(t.claims, claims) {
			continue
		}
		if found != nil {
			return nil, Ambiguous
		}
		found = t
	}
	if found == nil {
		return nil, Claims
	}
	return found, ""
}

// fit says whether got has all of want: as a text, or in a list of texts.
func fit(want map[string]string, got jwt.MapClaims) bool {
	for name, value := range want {
		switch have := got[name].(type) {
		case string:
			if have != value {
				return false
			}
		case []any:
			if !slices.ContainsFunc(have, func(e any) bool { s, ok := e.(string); return ok && s == value }) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// recall returns what is remembered of a JWT that these keys have verified.
func (v *verifier) recall(hash [sha256.Size]byte, set *keySet) (verified, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.by != set {
		return verified{}, false
	}
	m, ok := v.now[hash]
	if !ok {
		m, ok = v.old[hash]
	}
	return m, ok
}

// remember keeps what a good JWT said. Half of the room is given up at a time:
// what is still in use comes back by being verified once more.
func (v *verifier) remember(hash [sha256.Size]byte, set *keySet, m verified) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.by != set {
		v.by, v.now, v.old = set, nil, nil
	}
	if v.now == nil || len(v.now) >= maxRemembered/2 {
		v.now, v.old = make(map[[sha256.Size]byte]verified), v.now
	}
	v.now[hash] = m
}
