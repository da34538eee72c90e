// SPDX-License-Identifier: Apache-2.0

package attribution

import "time"

// A Finding is what is known about where the time of an answer goes, or went.
type Finding struct {
	Fault  Fault // "" = nothing stands out
	Proven bool  // else it is what fits best

	Running bool
	Stage   string        // what is waited for before the first token; "" = that is there
	Opening time.Duration // dns, connect and tls, and Head until the first token: of a finished answer
	Head    time.Duration
	Tokens  int

	Parts   Parts         // of Span
	Span    time.Duration // the whole of a finished answer, else its last 10 to 20 s
	Waits   time.Duration // since something last came; if Gives, since the app has not taken it
	Gives   bool
	Usual   time.Duration // gap between events; 0 = unknown
	Longest time.Duration // silence of the provider in Span

	Batches  Batches
	Known    bool          // the path's figures are
	Blind    bool          // losses on the way here do not show
	RTT      time.Duration // 0 = unknown
	Segments uint64        // that came in Span; 0 = unknown
	Disorder uint64        // of them; see Evidence
	Unheard  time.Duration // a probe is out for so long; 0 = none
	Proved   bool          // a probe was answered while nothing else came

	AppBytes int // wait for the app
}

// Batches are events that came together after a silence in which they were made.
type Batches struct {
	Count         int
	Events, Bytes int           // of one, on average
	After         time.Duration // likewise: how long the first of them waited
	Fixed         bool          // they end inside events: it is a buffer that is passed on when it is full
}

// appBehind is how much of a stream of tokens waits for an app that does not read: an
// app that does has taken each before the next. A guess.
const appBehind = 64 << 10

// Now is where the time goes at present. It changes nothing.
func (s *Stream) Now(now time.Time) Finding {
	c := *s
	f := Finding{Running: true, Waits: now.Sub(s.at), Gives: s.gives}
	if c.gives {
		c.Took(now)
	} else {
		c.Came(now, Piece{})
	}
	c.settle()
	from := c.marks[0]
	c.look(now)
	c.fill(&f, now, from)
	return f
}

// Whole is what is known of a stream that has ended, and took so long to begin.
func (s *Stream) Whole(opening, head time.Duration, tokens int) Finding {
	f := Finding{Opening: opening, Head: head, Tokens: tokens}
	s.fill(&f, s.at, mark{at: s.begun, seen: s.first, longest: s.longest})
	return f
}

func (s *Stream) fill(f *Finding, now time.Time, from mark) {
	t := s.tally.since(from.tally)
	f.Span, f.Longest, f.Parts = now.Sub(from.at), from.longest, t.resolved(s.tally)
	if s.events > 0 {
		f.Usual = s.waited / time.Duration(s.events)
	}
	if n := t.holds; n > 0 {
		f.Batches = Batches{Count: n, Events: t.events / n, Bytes: t.bytes / n, After: t.held / time.Duration(n), Fixed: n > 1 && t.cuts >= n-1}
	}
	f.Proved = t.proofs > 0
	if f.Known = s.known; s.known {
		e := s.seen
		f.Blind = e.Blind
		f.RTT, f.Segments, f.Disorder = e.RTT, e.Segments-min(e.Segments, from.seen.Segments), e.Disorder-min(e.Disorder, from.seen.Disorder)
		if e.Answered.Before(e.Asked) {
			f.Unheard = now.Sub(e.Asked)
		}
	}
	f.judge(t.faults)
}

// since is what t counted after it was u.
func (t tally) since(u tally) tally {
	return tally{
		parts: Parts{t.parts.Provider - u.parts.Provider, t.parts.Held - u.parts.Held, t.parts.Network - u.parts.Network, t.parts.App - u.parts.App},
		held:  t.held - u.held, holds: t.holds - u.holds, faults: t.faults - u.faults, proofs: t.proofs - u.proofs,
		cuts: t.cuts - u.cuts, events: t.events - u.events, bytes: t.bytes - u.bytes,
	}
}

// judge names what stands out; faults is how often the network was seen to be late.
func (f *Finding) judge(faults int) {
	f.Fault = Summary{Opening: f.Opening, Head: f.Head, Parts: f.Parts, Longest: f.Longest, Tokens: f.Tokens}.Fault()
	switch f.Fault {
	case FaultNetwork:
		f.Proven = faults > 0
		if !f.Proven && f.Running && f.Parts.Network < slowOpening { // once or twice, and not by much
			f.Fault = ""
		}
	case FaultBuffering:
		f.Proven = f.Batches.Fixed && f.Batches.Count >= pattern
		if f.Running && f.Batches.Count < pattern {
			f.Fault = ""
		}
	case FaultApp:
		f.Proven = true
	case FaultProvider:
		f.Proven = f.Proved
	}
}

// Failed is what is known of a request that has no answer of its upstream's.
func Failed(opening, head time.Duration, p Parts) Finding {
	f := Finding{Opening: opening, Head: head, Parts: p, Span: p.Total()}
	f.judge(0)
	return f
}

// AppWaits adds what waits for the app at present.
func (f *Finding) AppWaits(bytes int) {
	f.AppBytes = bytes
	if f.Fault == "" && f.Usual > 0 && bytes >= appBehind {
		f.Fault, f.Proven = FaultApp, true
	}
}

// Waiting is what is known of an answer whose first token has not come: what is waited
// for, and since when.
func Waiting(stage string, waits time.Duration) Finding {
	f := Finding{Running: true, Stage: stage, Waits: waits}
	switch stage {
	case "dns", "connect", "tls":
		if waits >= slowOpening {
			f.Fault, f.Proven = FaultNetwork, false
		}
	case "wait", "first_token":
		if waits >= slowHead {
			f.Fault = FaultProvider
		}
	}
	return f
}
