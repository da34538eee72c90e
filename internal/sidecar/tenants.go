// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/internal/tenant"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport"
)

// callers are the tenants in force, and what a reload is about to put in force.
type callers struct {
	book   *tenant.Book // nil = there are none
	source *tenant.Source
}

// buildCallers makes the tenants of cfg; those that were there keep what they have used.
func (s *Sidecar) buildCallers(cfg *config.Config) (callers, error) {
	source, err := tenant.Load(tenant.KeyConfig{
		Secret: cfg.JWT.Secret, File: cfg.JWT.KeysFile, URL: cfg.JWT.KeysURL, Refresh: time.Duration(cfg.JWT.Refresh),
	})
	if err != nil {
		return callers{}, fmt.Errorf("jwt: %w", err)
	}
	if len(cfg.Tenants) == 0 {
		return callers{source: source}, nil
	}
	tc := tenant.Config{}
	if cfg.JWT.Enabled() {
		tc.JWT = &tenant.Validation{Issuer: cfg.JWT.Issuer, Audience: cfg.JWT.Audience, Skew: time.Duration(cfg.JWT.Skew)}
	}
	for _, r := range cfg.Roles {
		tc.Roles = append(tc.Roles, tenant.Role(r))
	}
	for _, t := range cfg.Tenants {
		q := t.Quota
		set := tenant.Settings{
			Name: t.Name, Hashes: t.Tokens, UIDs: t.UIDs, GIDs: t.GIDs, Claims: t.Claims, Roles: t.Roles, Class: t.Priority, Weight: t.Weight,
			Limits: tenant.Limits{Requests: int64(q.Requests), OutputTokens: int64(q.OutputTokens), Upload: int64(q.Upload), Streams: int64(q.Streams)},
			Fields: make(map[string]http.Header),
		}
		for _, u := range cfg.Upstreams {
			if field, v := t.Key(u.Name, u.Dialect); v != "" {
				set.Fields[u.Name] = http.Header{http.CanonicalHeaderKey(field): {v}}
			}
		}
		tc.Tenants = append(tc.Tenants, set)
	}
	book, err := tenant.New(tc, s.keys, s.callers.book)
	return callers{book, source}, err
}

// useCallers puts them in force, and counts those of cfg from here on.
func (s *Sidecar) useCallers(c callers, cfg *config.Config) {
	s.callers = c
	s.keys.Use(c.source)
	names := make([]string, 0, len(cfg.Tenants))
	for _, t := range cfg.Tenants {
		names = append(names, t.Name)
	}
	s.metrics.SetTenants(names)
}

const (
	keysLimit = 10 * time.Second // guess: of one fetch; it is in nobody's way
	keysBytes = 1 << 20
)

// fetchKeys gets a JWK set, as the upstreams are reached: by the same resolver, and
// through the parent proxy where one applies.
func (s *Sidecar) fetchKeys(ctx context.Context, address string) ([]byte, error) {
	cfg := s.shown.Load()
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	pick, err := parentPicker(cfg.Config)
	if err != nil {
		return nil, err
	}
	ca, err := readFiles(cfg.JWT.CAFile)
	if err != nil {
		return nil, err
	}
	trusted, err := trust.New(trust.Config{CA: ca[0], Store: s.roots})
	if err != nil {
		return nil, err
	}
	tr, err := transport.New(s.dialer(keysLimit, "", pick), transport.Config{Trust: trusted, Sessions: s.sessions})
	if err != nil {
		return nil, err
	}
	defer tr.Close()
	ctx, cancel := context.WithTimeout(ctx, keysLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %d", resp.StatusCode)
	}
	return io.ReadAll(io.LimitReader(resp.Body, keysBytes+1)) // one more is too many
}

// denialLogEvery limits how often refusals of callers are logged: one who tries tokens
// must not fill the log.
const denialLogEvery = 10 * time.Second

// denied counts a refusal, and logs the first of a kind and then how many there were.
func (s *Sidecar) denied() func(ingress.Denial) {
	var mu sync.Mutex // guards the following
	var last time.Time
	var quiet int
	return func(d ingress.Denial) {
		s.metrics.TenantRefused(d.Tenant, d.Reason)
		now := time.Now()
		mu.Lock()
		more := quiet
		tell := now.Sub(last) >= denialLogEvery
		if tell {
			last, quiet = now, 0
		} else {
			quiet++
		}
		mu.Unlock()
		if tell {
			s.log.Warn("a caller was refused", "tenant", d.Tenant, "reason", d.Reason, "mode", string(d.Mode), "upstream", d.Upstream, "not_logged_since_the_last", more)
		}
	}
}

// A tenantStatus is what status shows of a tenant: never a token or a key.
type tenantStatus struct {
	Name         string      `json:"name"`
	Roles        []string    `json:"roles"`
	Priority     string      `json:"priority,omitempty"`
	Weight       int         `json:"weight"`
	Requests     quotaStatus `json:"requests"`      // of the last minute
	OutputTokens quotaStatus `json:"output_tokens"` // likewise
	Upload       quotaStatus `json:"upload"`        // likewise, in bytes
	Streams      quotaStatus `json:"streams"`       // that run
}

type quotaStatus struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit,omitempty"` // 0 = none
}

// A jwtStatus is what status shows of the keys of JWTs.
type jwtStatus struct {
	Keys    int       `json:"keys"`
	Fetched time.Time `json:"fetched,omitzero"` // the last good answer of jwt.keys_url
	Error   string    `json:"error,omitempty"`  // of the last refresh: the keys before it are in use
}

func (s *Sidecar) tenantStatus() ([]tenantStatus, *jwtStatus) {
	now := s.shown.Load()
	if now.book == nil {
		return nil, nil
	}
	at := time.Now()
	var out []tenantStatus
	for _, t := range now.book.Tenants() {
		u := t.Usage(at)
		out = append(out, tenantStatus{t.Name, t.Roles, t.Class, t.Weight, quotaStatus(u.Requests), quotaStatus(u.OutputTokens), quotaStatus(u.Upload), quotaStatus(u.Streams)})
	}
	if !now.JWT.Enabled() {
		return out, nil
	}
	state := s.keys.State()
	j := &jwtStatus{Keys: state.Keys}
	if !state.Fetched.IsZero() {
		j.Fetched = state.Fetched.UTC()
	}
	if state.Err != nil {
		j.Error = state.Err.Error()
	}
	return out, j
}
