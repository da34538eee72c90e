// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"crypto/tls"
	"time"
)

// A Way is one kind of handshake.
type Way int

// The ways.
const (
	Full    Way = iota // as Go begins it, with a hybrid key share
	Resumed            // with a ticket of the full one before
	Classic            // full, with a key share of X25519 alone
	Ways
)

func (w Way) String() string { return [...]string{"full", "resumed", "X25519 only"}[w] }

// A Handshake is one that succeeded, over a TCP connection of its own.
type Handshake struct {
	Connect time.Duration // of TCP
	Took    time.Duration // of TLS alone
	Hello   int           // bytes of the ClientHello
	Group   string        // of the key exchange
	Version string
	Resumed bool // whatever was asked for
}

// Kinds of resumptions that were not tried.
const (
	NoTicket   Kind = "no_ticket"   // none came
	NotOffered Kind = "not_offered" // Go holds it back: the certificate has expired
)

// Compare makes rounds of one handshake of each way, one after another and the
// first in turn, so that a drift of the network meets all, and hands over each. It
// returns early only when ctx ends.
func (p *Prober) Compare(ctx context.Context, rounds int, each func(Way, Handshake, *Failure)) {
	for round := range rounds {
		order := [...]func(){
			func() { p.fullThenResumed(ctx, each) },
			func() {
				m, err := p.meet(ctx, offer{groups: classic()})
				report(ctx, Classic, m, err, each)
			},
		}
		for i := range order {
			order[(i+round)%len(order)]()
			if ctx.Err() != nil {
				return
			}
		}
	}
}

// fullThenResumed uses each ticket once (RFC 8446 section C.4).
func (p *Prober) fullThenResumed(ctx context.Context, each func(Way, Handshake, *Failure)) {
	m, err := p.meet(ctx, offer{tickets: 1})
	report(ctx, Full, m, err, each)
	if err != nil || ctx.Err() != nil {
		return
	}
	if len(m.sessions) == 0 {
		each(Resumed, Handshake{}, &Failure{Kind: NoTicket, Text: "the server sends no ticket"})
		return
	}
	if m, err = p.meet(ctx, offer{session: m.sessions[0]}); err == nil && m.withheld {
		each(Resumed, Handshake{}, &Failure{Kind: NotOffered, Text: "a session of an expired certificate is not offered"})
		return
	}
	report(ctx, Resumed, m, err, each)
}

func report(ctx context.Context, w Way, m *meeting, err error, each func(Way, Handshake, *Failure)) {
	if ctx.Err() != nil && err != nil {
		return // the handshake has not failed, it was given up
	}
	each(w, Handshake{
		Connect: m.connect, Took: m.took, Hello: m.hello, Group: groupName(m.state),
		Version: tls.VersionName(m.state.Version), Resumed: m.state.DidResume,
	}, asFailure(err))
}
