// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// MaxToken is the size above which a token is not looked at. JWTs with many
// groups have 2 to 4 KiB.
const MaxToken = 8 << 10

// Config is what a Book is made from.
type Config struct {
	Tenants []Settings
	Roles   []Role
	JWT     *Validation // nil = JWTs identify nobody
}

// Settings are one tenant as it is configured.
type Settings struct {
	Name   string
	Hashes [][sha256.Size]byte // of its tokens
	UIDs   []uint32
	GIDs   []uint32
	Claims map[string]string // that a JWT must have, all of them; empty = none fits
	Roles  []string
	Class  string
	Weight int
	Limits Limits
	Fields map[string]http.Header // credentials by upstream, sent in place of the app's
}

// A Validation is what a JWT must say besides being signed.
type Validation struct {
	Issuer   string
	Audience []string      // one of them; empty = not looked at
	Skew     time.Duration // that clocks may differ by
}

// A Tenant is one who calls.
type Tenant struct {
	Name   string
	Class  string
	Weight int
	Roles  []string

	limits  Limits
	roles   []*role
	fields  map[string]http.Header
	claims  map[string]string
	account *account
}

// Fields are the credentials that upstream gets for this tenant; nil = none.
func (t *Tenant) Fields(upstream string) http.Header { return t.fields[upstream] }

// A Book is one configuration of tenants. It does not change.
type Book struct {
	tenants []*Tenant
	secret  [sha256.Size]byte
	tokens  map[[sha256.Size]byte]*Tenant // by secret hash
	uids    map[uint32]*Tenant
	gids    map[uint32]*Tenant
	claimed []*Tenant // those with claims
	jwt     *verifier // nil = none
}

// New makes a Book. Tenants that old has too keep what they have used of their
// quotas. keys may be nil where cfg.JWT is.
func New(cfg Config, keys *Keys, old *Book) (*Book, error) {
	b := &Book{tokens: make(map[[sha256.Size]byte]*Tenant), uids: make(map[uint32]*Tenant), gids: make(map[uint32]*Tenant)}
	if _, err := rand.Read(b.secret[:]); err != nil {
		return nil, fmt.Errorf("tenant: choose a secret: %w", err)
	}
	roles := make(map[string]*role, len(cfg.Roles))
	for _, r := range cfg.Roles {
		compiled, err := r.compile()
		if err != nil {
			return nil, fmt.Errorf("role %s: %w", r.Name, err)
		}
		roles[r.Name] = compiled
	}
	for _, c := range cfg.Tenants {
		if err := b.add(c, roles, old); err != nil {
			return nil, fmt.Errorf("tenant %s: %w", c.Name, err)
		}
	}
	if cfg.JWT != nil {
		if keys == nil {
			return nil, errors.New("tenant: JWTs need keys")
		}
		b.jwt = newVerifier(*cfg.JWT, keys)
	}
	return b, nil
}

// add puts one tenant in. Whatever identifies must identify one tenant only.
func (b *Book) add(c Settings, roles map[string]*role, old *Book) error {
	t := &Tenant{Name: c.Name, Class: c.Class, Weight: c.Weight, Roles: c.Roles, limits: c.Limits, fields: c.Fields, claims: c.Claims}
	if t.account = old.accountOf(c.Name); t.account == nil {
		t.account = newAccount()
	}
	for _, name := range c.Roles {
		r := roles[name]
		if r == nil {
			return fmt.Errorf("there is no role %q", name)
		}
		t.roles = append(t.roles, r)
	}
	if other := contradiction(t.roles); other != "" {
		return errors.New(other)
	}
	for _, h := range c.Hashes {
		k := b.hashed(h)
		if other := b.tokens[k]; other != nil {
			return fmt.Errorf("has the same token as tenant %s", other.Name)
		}
		b.tokens[k] = t
	}
	for _, list := range []struct {
		what string
		ids  []uint32
		of   map[uint32]*Tenant
	}{{"user", c.UIDs, b.uids}, {"group", c.GIDs, b.gids}} {
		for _, id := range list.ids {
			if other := list.of[id]; other != nil {
				return fmt.Errorf("has the same %s %d as tenant %s", list.what, id, other.Name)
			}
			list.of[id] = t
		}
	}
	if len(c.Claims) > 0 {
		for _, other := range b.claimed {
			if maps.Equal(other.claims, c.Claims) {
				return fmt.Errorf("has the same claims as tenant %s", other.Name)
			}
		}
		b.claimed = append(b.claimed, t)
	}
	b.tenants = append(b.tenants, t)
	return nil
}

// hashed makes of a token's hash what it is looked up by. Only who knows the
// secret can choose tokens with like ones, so that the time a look-up takes
// tells nothing.
func (b *Book) hashed(h [sha256.Size]byte) [sha256.Size]byte {
	var both [2 * sha256.Size]byte
	copy(both[:], b.secret[:])
	copy(both[sha256.Size:], h[:])
	return sha256.Sum256(both[:])
}

// accountOf is nil-safe.
func (b *Book) accountOf(name string) *account {
	if b == nil {
		return nil
	}
	if t := b.Tenant(name); t != nil {
		return t.account
	}
	return nil
}

// Tenant finds a tenant by its name, nil if there is none.
func (b *Book) Tenant(name string) *Tenant {
	i := slices.IndexFunc(b.tenants, func(t *Tenant) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return b.tenants[i]
}

// Tenants lists all, in the order of the configuration.
func (b *Book) Tenants() []*Tenant { return slices.Clone(b.tenants) }

// Recognises says whether token is one of a tenant's, or a JWT that was accepted
// or might be: whatever it is, it is no business of others.
func (b *Book) Recognises(token string) bool {
	if token == "" || len(token) > MaxToken {
		return false
	}
	return b.byToken(token) != nil || b.jwt != nil && shapedAsJWT(token)
}

func (b *Book) byToken(token string) *Tenant {
	return b.tokens[b.hashed(sha256.Sum256([]byte(token)))]
}
