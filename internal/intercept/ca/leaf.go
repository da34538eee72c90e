// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"container/list"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A leaf is one certificate of a host, and what it was made under. It never changes.
type leaf struct {
	cert   *tls.Certificate
	set    *signers
	active int       // in set
	renew  time.Time // from then on one user makes the next
}

// good says that the certificate can be given out.
func (l *leaf) good(set *signers, active int, now time.Time) bool {
	return l != nil && l.set == set && l.active == active &&
		!now.Before(l.cert.Leaf.NotBefore) && now.Before(l.cert.Leaf.NotAfter)
}

// Certificate returns the certificate of a host, in any spelling of it. It is shared
// and must not be changed. The error matches ErrUnlisted, ErrUncovered, ErrExpired or
// ErrInvalid.
func (a *Authority) Certificate(host string) (*tls.Certificate, error) {
	now := a.now()
	set := a.signers(now)
	active := set.active(now)
	e, err := a.entry(host)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	l := e.leaf.Load()
	if !l.good(set, active, now) {
		e.making.Lock() // others wait for the one that makes it
		defer e.making.Unlock()
		if l = e.leaf.Load(); l.good(set, active, now) {
			return l.cert, nil
		}
		if l, err = a.mint(e, set, active, now); err != nil {
			return nil, fmt.Errorf("ca: %s: %w", e.name, err)
		}
		return l.cert, nil
	}
	if !now.Before(l.renew) && e.making.TryLock() {
		defer e.making.Unlock()
		if made, err := a.mint(e, set, active, now); err == nil {
			return made.cert, nil
		}
		// The present one serves until it ends, and then the error shows.
	}
	return l.cert, nil
}

// mint makes the certificate of an entry, whose lock is held.
func (a *Authority) mint(e *entry, set *signers, active int, now time.Time) (*leaf, error) {
	by, err := set.forName(e.name, now)
	if err != nil {
		return nil, err
	}
	cert, err := by.leaf(e.name, a.key, a.keyID, a.cfg.LeafValidity, now)
	if err != nil {
		return nil, err
	}
	l := &leaf{
		cert: &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: a.key, Leaf: cert},
		set:  set, active: active,
		renew: now.Add(cert.NotAfter.Sub(now) * 2 / 3),
	}
	e.leaf.Store(l)
	a.leaves.made.Add(1)
	return l, nil
}

// entry returns the place of a listed host.
func (a *Authority) entry(host string) (*entry, error) {
	if e := a.leaves.get(host); e != nil {
		return e, nil
	}
	name, err := Name(host)
	if err != nil {
		return nil, err
	}
	if _, listed := slices.BinarySearch(a.hosts, name); !listed {
		return nil, fmt.Errorf("%w: %s", ErrUnlisted, name)
	}
	return a.leaves.getOrAdd(name), nil
}

// Minted is how many certificates were made.
func (a *Authority) Minted() uint64 { return a.leaves.made.Load() }

// An entry is the place of one host.
type entry struct {
	name   string
	leaf   atomic.Pointer[leaf]
	making sync.Mutex // held while leaf is made
}

// leafCache holds the entries of the hosts used last.
type leafCache struct {
	max  int
	made atomic.Uint64

	mu     sync.Mutex               // guards the fields below; no certificate is made under it
	order  list.List                // of *entry, the one used last first
	byName map[string]*list.Element // by the spelling of Name
}

func newLeafCache(limit int) *leafCache {
	return &leafCache{max: limit, byName: make(map[string]*list.Element)}
}

func (c *leafCache) get(name string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.getLocked(name)
}

func (c *leafCache) getLocked(name string) *entry {
	el := c.byName[name]
	if el == nil {
		return nil
	}
	c.order.MoveToFront(el)
	return el.Value.(*entry)
}

func (c *leafCache) getOrAdd(name string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.getLocked(name); e != nil {
		return e
	}
	e := &entry{name: name}
	c.byName[name] = c.order.PushFront(e)
	if c.order.Len() > c.max {
		oldest := c.order.Remove(c.order.Back()).(*entry)
		delete(c.byName, oldest.name)
	}
	return e
}
