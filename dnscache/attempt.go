// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

const (
	// familyWait is how long the addresses of one family wait for the other
	// (RFC 8305 section 3).
	familyWait = 50 * time.Millisecond
	// Addresses wait for the HTTPS record a fifth of the time that they took, as
	// Chromium does.
	minHTTPSWait, maxHTTPSWait = 5 * time.Millisecond, 50 * time.Millisecond
)

type verdict int

const (
	verdictFailed   verdict = iota
	verdictNegative         // the server says that there is nothing
	verdictPositive
)

// An outcome is what one server said to the questions of one lookup.
type outcome struct {
	turn  turn
	parts [parts]part
	asked partSet
	final bool // nothing follows from this turn
	took  time.Duration
	err   error
}

func (o *outcome) verdict() verdict {
	answered := true
	for i, asked := range o.asked {
		if !asked {
			continue
		}
		p := &o.parts[i]
		switch {
		case i != partHTTPS && p.state == partGood:
			return verdictPositive
		case i != partHTTPS && p.nxdomain():
			return verdictNegative
		case i != partHTTPS || !o.asked.addresses():
			answered = answered && (p.state == partGood || p.state == partNegative)
		}
	}
	switch {
	case !answered:
		return verdictFailed
	case !o.asked.addresses() && o.parts[partHTTPS].state == partGood:
		return verdictPositive
	}
	return verdictNegative
}

// attempt asks one server and emits the outcome: once, or a first time when it
// can be used and what is missing keeps the caller waiting.
func (r *Resolver) attempt(ctx context.Context, t turn, asked partSet, emit func(outcome)) {
	t.server.start()
	told := false
	observe := func(o *outcome) {
		if !told {
			told = true
			r.observe(o)
		}
	}
	for i, name := range t.names {
		o := r.round(ctx, t, name, asked, func(o outcome) {
			observe(&o)
			emit(o)
		})
		// Only a name that does not exist leads on to the search list; after
		// anything unclear it would find another host (RFC 1535).
		if o.verdict() == verdictNegative && i < len(t.names)-1 {
			continue
		}
		observe(&o)
		o.final = true
		emit(o)
		return
	}
}

type reply struct {
	which  int
	answer exchange.Answer
	err    error
}

// query asks for one part.
func (s *server) query(ctx context.Context, name string, which int) reply {
	a, err := s.x.Exchange(ctx, exchange.Question{Name: name, Type: qtype(which)})
	return reply{which, a, err}
}

// round asks one server for one name. early is called at most once, when
// addresses have waited long enough for the rest.
func (r *Resolver) round(ctx context.Context, t turn, name string, asked partSet, early func(outcome)) outcome {
	o := outcome{turn: t, asked: asked}
	replies := make(chan reply, parts)
	left := 0
	for which := range asked {
		if asked[which] {
			left++
			if !r.spawn(func() { replies <- t.server.query(ctx, name, which) }) {
				replies <- reply{which: which, err: errClosed}
			}
		}
	}
	begun := r.now()
	var limit time.Duration // when early is due; 0 means not yet
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for ; left > 0; left-- {
		var got reply
		select {
		case got = <-replies:
		case <-timer.C:
			early(o)
			got = <-replies
			limit = never
		}
		o.take(got, r)
		now := r.now()
		useful := o.verdict() == verdictPositive
		if o.took == 0 && (useful || left == 1 || o.nxdomain()) {
			o.took = now - begun
		}
		if o.nxdomain() {
			return o
		}
		if at := now + o.patience(now-begun); useful && left > 1 && limit != never && (limit == 0 || at < limit) {
			limit = at
			timer.Reset(at - now)
		}
	}
	return o
}

// take adds one reply.
func (o *outcome) take(got reply, r *Resolver) {
	s := o.turn.server
	p := part{state: partFailed, ttl: -1}
	if got.err == nil {
		p = newPart(got.which, got.answer, r.cfg.MinTTL)
		if p.state == partFailed && o.err == nil {
			o.err = rcodeError(got.answer)
		}
	} else if o.err == nil || got.which != partHTTPS {
		o.err = got.err
	}
	p.fetched = r.now()
	p.source, p.system, p.trusted, p.tier = s.name, s.system, s.encrypted, uint8(min(o.turn.tier, 255))
	o.parts[got.which] = p
	if got.which == partHTTPS {
		s.noteHTTPS(got.err == nil)
	}
}

// nxdomain reports whether an address question was told that the name does not
// exist. Some servers say so of AAAA alone, so the other family is waited for.
func (o *outcome) nxdomain() bool {
	if o.verdict() != verdictNegative || o.asked[partA] && o.parts[partA].state == partUnknown {
		return false
	}
	return o.parts[partA].nxdomain() || o.parts[partAAAA].nxdomain()
}

// denial returns the part that says that there is nothing.
func (o *outcome) denial() *part {
	for _, which := range [2]int{partA, partAAAA} {
		if p := &o.parts[which]; p.nxdomain() {
			return p
		}
	}
	if o.asked[partA] {
		return &o.parts[partA]
	}
	return &o.parts[partAAAA]
}

// patience is how long addresses that are there wait for the rest.
func (o *outcome) patience(elapsed time.Duration) time.Duration {
	for _, which := range [2]int{partA, partAAAA} {
		if o.asked[which] && o.parts[which].state == partUnknown {
			return familyWait
		}
	}
	if !o.turn.server.answersHTTPS() {
		return 0
	}
	return min(max(elapsed/5, minHTTPSWait), maxHTTPSWait)
}

// A replyError is a reply code that is no answer.
type replyError struct {
	code int
	why  []exchange.ExtendedError
}

func rcodeError(a exchange.Answer) error { return &replyError{a.RCode, a.Extended} }

func (e *replyError) Error() string {
	text := fmt.Sprintf("reply code %d", e.code)
	switch e.code {
	case exchange.RCodeServFail:
		text = "SERVFAIL"
	case exchange.RCodeRefused:
		text = "REFUSED"
	}
	for _, x := range e.why {
		text += fmt.Sprintf(" (extended error %d %s)", x.Code, x.Text)
	}
	return text
}

// observe learns from an outcome how the server does.
func (r *Resolver) observe(o *outcome) {
	now := r.now()
	s := o.turn.server
	if o.verdict() == verdictFailed {
		code, ok := errors.AsType[*replyError](o.err)
		if !ok || code.code == exchange.RCodeRefused {
			r.noteFailure(s, now, exchange.Question{Name: o.turn.names[0], Type: exchange.TypeA}, o.err)
			return
		}
	}
	r.noteSuccess(s, now, o.took)
}

func (r *Resolver) noteFailure(s *server, now time.Duration, q exchange.Question, err error) {
	if s.failedWith(now, q, err) {
		r.event(EventResolverDead, s.name, err)
		r.poke()
	}
}

func (r *Resolver) noteSuccess(s *server, now, took time.Duration) {
	if s.succeeded(now, took) {
		r.event(EventResolverAlive, s.name, nil)
		r.revived()
	}
}
