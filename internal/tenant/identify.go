// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"strings"
	"time"
)

// A Proof is what a request shows of who sent it.
type Proof struct {
	// Own stands in a field that is meant for Warmwire alone, and decides: if it is
	// wrong, nothing else is looked at. HasOwn says that there is such a field.
	Own    string
	HasOwn bool
	// Shared stand in fields that belong to the API, where an SDK must put something.
	Shared []string
	// Peer asks for the user and group at the other end; nil, or not known = nobody.
	Peer func() (p Peer, known bool)
}

// A Peer is the process at the other end of a local connection.
type Peer struct {
	UID, GID uint32
	HasGID   bool
}

// A Reason says why a caller is not known, or may not. It is for the log and the
// metrics, never for the caller.
type Reason string

// The reasons. They are also metric labels.
const (
	NoProof   Reason = "no_proof"      // nothing that could identify
	Unknown   Reason = "unknown_token" // no tenant has it
	TooLarge  Reason = "too_large"     // of more than MaxToken bytes
	Malformed Reason = "jwt_malformed" // shaped as a JWT, and none
	Unsigned  Reason = "jwt_algorithm" // none, or an algorithm that no key is for
	Key       Reason = "jwt_key"       // names a key that is not known
	Signature Reason = "jwt_signature"
	Expired   Reason = "jwt_expired"
	Early     Reason = "jwt_future" // not valid yet, or issued in the future
	Claims    Reason = "jwt_claims" // issuer or audience, or no tenant has such claims
	Ambiguous Reason = "ambiguous"  // two tenants have such claims
	NoKeys    Reason = "no_keys"    // no keys could be fetched yet
	NotInRole Reason = "not_in_role"
)

// Identify finds the tenant that p belongs to; without one it says why.
func (b *Book) Identify(p Proof, now time.Time) (*Tenant, Reason) {
	if p.HasOwn {
		return b.verify(p.Own, now)
	}
	why := NoProof
	for _, token := range p.Shared {
		t, reason := b.verify(token, now)
		if t != nil {
			return t, ""
		}
		if why == NoProof || why == Unknown {
			why = reason
		}
	}
	if t := b.byPeer(p.Peer); t != nil {
		return t, ""
	}
	return nil, why
}

// verify finds the tenant of one token.
func (b *Book) verify(token string, now time.Time) (*Tenant, Reason) {
	if len(token) > MaxToken {
		return nil, TooLarge
	}
	if t := b.byToken(token); t != nil {
		return t, ""
	}
	if b.jwt == nil || !shapedAsJWT(token) {
		return nil, Unknown
	}
	return b.byJWT(token, now)
}

// byPeer prefers the user, which is the narrower of the two.
func (b *Book) byPeer(ask func() (Peer, bool)) *Tenant {
	if ask == nil || len(b.uids) == 0 && len(b.gids) == 0 {
		return nil
	}
	p, known := ask()
	if !known {
		return nil
	}
	if t := b.uids[p.UID]; t != nil {
		return t
	}
	if p.HasGID {
		return b.gids[p.GID]
	}
	return nil
}

// shapedAsJWT says whether a token has the three parts of a JWS (RFC 7515 §3.1),
// of which the first is an object in base64url.
func shapedAsJWT(token string) bool {
	return strings.HasPrefix(token, "ey") && strings.Count(token, ".") == 2
}
