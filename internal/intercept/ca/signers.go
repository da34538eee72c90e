// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// maxSigners is the most authorities at a time: an old, the active and the next one.
const maxSigners = 3

// Why a rotation cannot be done.
var (
	ErrNextExists = errors.New("there is a next authority already: switch to it first")
	ErrNoNext     = errors.New("there is no next authority: rotate first")
	ErrOldExists  = errors.New("there is an old authority still: retire it first")
	ErrNoOld      = errors.New("there is no old authority")
)

// signers are the authorities of a time, the oldest first, at least one. They never
// change. Each but the first has taken over from the one before it when its time from
// has come.
type signers struct {
	list  []*signer
	stamp os.FileInfo // of the file they were read from; nil in memory
}

// active is the place of the one that signs: the newest whose time has come. The
// first does if the clock is before all of them.
func (s *signers) active(now time.Time) int {
	for i := len(s.list) - 1; i > 0; i-- {
		if from := s.list[i].from; !from.IsZero() && !now.Before(from) {
			return i
		}
	}
	return 0
}

// forName returns who signs for a name: the active one, else the next.
func (s *signers) forName(name string, now time.Time) (*signer, error) {
	err := ErrUncovered
	for _, candidate := range s.list[s.active(now):] {
		switch {
		case !candidate.permits(name):
		case !candidate.covers(now):
			err = fmt.Errorf("%w: %s is valid from %s to %s, and it is %s", ErrExpired, candidate.cert.Subject.CommonName,
				stamp(candidate.cert.NotBefore), stamp(candidate.cert.NotAfter), stamp(now))
		default:
			return candidate, nil
		}
	}
	return nil, err
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (s *signers) states(now time.Time) []State {
	active := s.active(now)
	list := make([]State, len(s.list))
	for i, each := range s.list {
		role := Active
		switch {
		case i < active:
			role = Old
		case i > active:
			role = Next
		}
		list[i] = State{
			Role: role, Subject: each.cert.Subject.String(), Fingerprint: Fingerprint(each.cert), Hosts: each.hosts(),
			NotBefore: each.cert.NotBefore, NotAfter: each.cert.NotAfter, SignsFrom: each.from, Certificate: each.cert,
		}
	}
	return list
}

// Rotate makes the next authority, for the hosts of the Config. It signs from the
// time at, by each process's clock; zero: when Switch says so. Until then clients can
// come to trust it.
func (a *Authority) Rotate(at time.Time) error {
	return a.change(func(s *signers, now time.Time) ([]*signer, error) {
		switch active := s.active(now); {
		case active < len(s.list)-1:
			return nil, ErrNextExists
		case len(s.list) == maxSigners:
			return nil, ErrOldExists
		}
		next, err := newSigner(a.hosts, a.cfg.Machine, a.cfg.Validity, now)
		if err != nil {
			return nil, err
		}
		if !at.IsZero() {
			// Not before the one it takes over from, so that their order is that of their times.
			next.from = later(at.Round(0), s.list[len(s.list)-1].from.Add(1))
		}
		return append(slices.Clone(s.list), next), nil
	})
}

// Switch lets the next authority sign from now on.
func (a *Authority) Switch() error {
	return a.change(func(s *signers, now time.Time) ([]*signer, error) {
		last := len(s.list) - 1
		if s.active(now) == last {
			return nil, ErrNoNext
		}
		next := *s.list[last]
		next.from = later(now, s.list[last-1].from.Add(1))
		return append(slices.Clone(s.list[:last]), &next), nil
	})
}

// Retire forgets the authorities that have signed before the active one: clients that
// trust the active one do not need them any more. Their keys are gone for good.
func (a *Authority) Retire() error {
	return a.change(func(s *signers, now time.Time) ([]*signer, error) {
		active := s.active(now)
		if active == 0 {
			return nil, ErrNoOld
		}
		return slices.Clone(s.list[active:]), nil
	})
}

// change replaces the authorities, in the file too if there is one.
func (a *Authority) change(edit func(*signers, time.Time) ([]*signer, error)) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	now := a.now()
	var set *signers
	var err error
	if a.files == nil {
		set = &signers{}
		set.list, err = edit(a.current.Load(), now)
	} else {
		set, err = a.files.update(func(s *signers) ([]*signer, error) { return edit(s, now) })
	}
	if err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	a.current.Store(set)
	a.fault.Store(nil)
	return nil
}

// lookEvery is how often the file is looked at, which another process may have
// changed, when its content is asked for: 2 µs.
const lookEvery = 5 * time.Second

// signers returns those in force, after a look at the file if one is due. If it
// cannot be read the last good ones stay.
func (a *Authority) signers(now time.Time) *signers {
	set := a.current.Load()
	if a.files == nil {
		return set
	}
	// A clock that was put back must not stop the looks.
	due := a.nextLook.Load()
	if left := due - now.UnixNano(); left > 0 && left <= int64(lookEvery) || !a.changing.TryLock() {
		return set
	}
	defer a.changing.Unlock()
	a.nextLook.Store(now.Add(lookEvery).UnixNano())
	set = a.current.Load()
	fresh, err := a.files.readIfChanged(set)
	if err != nil {
		a.fault.Store(&err)
		return set
	}
	a.fault.Store(nil)
	a.current.Store(fresh)
	return fresh
}
