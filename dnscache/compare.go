// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Comparison is what one resolver answers to the questions of a lookup.
type Comparison struct {
	Server    string
	Encrypted bool
	System    bool
	Addrs     []netip.Addr
	Services  []Service
	TTL       time.Duration // of the addresses
	Cold      time.Duration // the first answer, with its connection if there was none
	Warm      time.Duration // the same question again
	Err       error         // why there are no addresses
	Notes     []string      // in what it differs from others, for people
}

// Compare asks all resolvers for a name, whatever the mode, each twice, and says
// in what they differ. It neither uses nor fills the cache. A name of the own
// network is asked of the network's own resolvers only.
func (r *Resolver) Compare(ctx context.Context, name string) ([]Comparison, error) {
	key := hostKey(name)
	if !isName(key) {
		return nil, fmt.Errorf("%q is not a host name", name)
	}
	r.mu.RLock()
	sc, own := r.scopes.of(key, r.conf.Search), r.own
	r.mu.RUnlock()
	var servers []*server
	for _, s := range r.servers() {
		if !s.is(own) && (sc == scopePublic || s.system || sc == scopeLocal && !s.public) {
			servers = append(servers, s)
		}
	}
	out := make([]Comparison, len(servers))
	var asking sync.WaitGroup
	for i, s := range servers {
		asking.Go(func() { out[i] = r.compareOne(ctx, s, key) })
	}
	asking.Wait()
	noteDifferences(out, sc == scopePublic)
	return out, nil
}

func (r *Resolver) compareOne(ctx context.Context, s *server, key string) Comparison {
	c := Comparison{Server: s.name, Encrypted: s.encrypted, System: s.system}
	var last outcome
	for _, took := range []*time.Duration{&c.Cold, &c.Warm} {
		last = r.questions(ctx, s, key)
		if *took = last.took; last.err != nil {
			break
		}
	}
	c.Err = last.err
	for _, which := range [2]int{partAAAA, partA} {
		if p := &last.parts[which]; p.state == partGood {
			c.Addrs = append(c.Addrs, p.addrs...)
			if c.TTL == 0 || p.ttl < c.TTL {
				c.TTL = p.ttl
			}
		}
	}
	c.Services = last.parts[partHTTPS].services
	if c.Err == nil && len(c.Addrs) == 0 {
		c.Err = notFound(key, last.denial())
	}
	return c
}

// questions asks the three questions at once and waits for all answers.
func (r *Resolver) questions(ctx context.Context, s *server, key string) outcome {
	o := outcome{turn: turn{server: s}, asked: allParts()}
	begun := r.now()
	replies := make(chan reply, parts)
	var asking sync.WaitGroup
	for which := range parts {
		asking.Go(func() { replies <- s.query(ctx, key, which) })
	}
	for range parts {
		got := <-replies
		if got.which != partHTTPS {
			o.took = max(o.took, r.now()-begun)
		} else if got.err != nil {
			continue // many resolvers do not know the type: no fault of the addresses
		}
		o.take(got, r)
	}
	asking.Wait()
	if o.verdict() == verdictPositive {
		o.err = nil
	}
	return o
}

// noteDifferences names what people should look at.
func noteDifferences(list []Comparison, public bool) {
	for i := range list {
		c := &list[i]
		if public && !c.Encrypted && slices.ContainsFunc(c.Addrs, isPrivate) {
			c.Notes = append(c.Notes, "a private address for a public name: a network login page, or a mapping of this site")
		}
		if len(c.Addrs) == 0 {
			if slices.ContainsFunc(list, func(d Comparison) bool { return len(d.Addrs) > 0 }) {
				c.Notes = append(c.Notes, "no address, where others have some")
			}
			continue
		}
		// Services of many addresses give each resolver others: only what no
		// other one knows at all is worth a word, and only beside two others.
		others, shared := 0, false
		for j := range list {
			if i == j || len(list[j].Addrs) == 0 {
				continue
			}
			others++
			shared = shared || slices.ContainsFunc(c.Addrs, func(a netip.Addr) bool { return slices.Contains(list[j].Addrs, a) })
		}
		if others > 0 && !shared {
			c.Notes = append(c.Notes, "none of its addresses is known to another resolver")
		}
	}
}
