// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmwire/warmwire/tlspool/trust"
)

// A Report is what was found. Parts that were not reached are nil.
type Report struct {
	Host    string `json:"host"`
	Port    int    `json:"port"`
	Address string `json:"address,omitempty"`

	Failure    *Failure    `json:"failure,omitempty"` // why there is nothing else
	Chain      *Chain      `json:"chain,omitempty"`
	Staple     *Staple     `json:"staple,omitempty"`
	Agreed     *Agreed     `json:"agreed,omitempty"`
	ClientCert *Asked      `json:"client_certificate,omitempty"` // nil: not asked for
	Versions   []Version   `json:"versions,omitempty"`
	ALPN       []ALPN      `json:"alpn,omitempty"`
	Tickets    *Tickets    `json:"tickets,omitempty"`
	Handshakes *Comparison `json:"handshakes,omitempty"`
	Notes      []string    `json:"notes,omitempty"`
}

// Verified tells whether a client would trust this server.
func (r *Report) Verified() bool { return r.Failure == nil && r.Chain != nil && r.Chain.Verified }

// Agreed is what a client of ours and the server agree on.
type Agreed struct {
	Version     string `json:"version"`
	CipherSuite string `json:"cipher_suite"`
	Group       string `json:"key_exchange"`
	Protocol    string `json:"alpn"` // "" = none
	Retried     bool   `json:"hello_retry_request"`
}

// Asked says what became of a client certificate that the server asked for.
type Asked struct {
	Sent    bool     `json:"sent"`
	Failure *Failure `json:"failure,omitempty"`
}

// A Version is one version of TLS offered alone.
type Version struct {
	Name        string   `json:"name"`
	Spoken      bool     `json:"spoken"`
	CipherSuite string   `json:"cipher_suite,omitempty"`
	Failure     *Failure `json:"failure,omitempty"`
}

// ALPN is what the server chose of an offer.
type ALPN struct {
	Offered []string `json:"offered"`
	Chosen  string   `json:"chosen"` // "" = none
	Failure *Failure `json:"failure,omitempty"`
}

// Tickets are those of one full handshake.
type Tickets struct {
	Count     int      `json:"count"`
	Lifetime  *float64 `json:"lifetime_seconds,omitempty"`     // the shortest; nil: not said
	EarlyData *uint32  `json:"early_data_max_bytes,omitempty"` // the least; 0: none is allowed; nil: no ticket, or TLS 1.2
	Bytes     int      `json:"bytes,omitempty"`                // of the longest
	Failure   *Failure `json:"failure,omitempty"`
}

// A Spread is a sample of durations in milliseconds.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median_ms"`
	Min    float64 `json:"min_ms"`
	Max    float64 `json:"max_ms"`
}

// A Measured is one way of shaking hands.
type Measured struct {
	Took   Spread       `json:"took"`
	Hello  int          `json:"client_hello_bytes,omitempty"`
	Group  string       `json:"key_exchange,omitempty"`
	Failed map[Kind]int `json:"failed,omitempty"`
}

// A Comparison is several handshakes of each way, in turn.
type Comparison struct {
	Connect  Spread   `json:"connect"` // TCP, before all of them
	Full     Measured `json:"full"`
	Resumed  Measured `json:"resumed"`
	Classic  Measured `json:"x25519_only"`
	Share    float64  `json:"resumed_share"` // of the tickets tried
	Tried    int      `json:"tickets_tried"`
	Verified bool     `json:"with_verification"`
}

// TLS examines the server. Its error is one of the configuration: what the
// server does wrong is in the report.
func TLS(ctx context.Context, cfg Config) (*Report, error) {
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	p.verify = false
	r := &Report{Host: p.cfg.Host, Port: p.cfg.Port}
	if !p.first(ctx, r) {
		return r, nil
	}
	p.verify = r.Chain.Verified && r.Chain.alone
	for _, part := range []func(context.Context, *Report){p.versions, p.alpn, p.compare} {
		if ctx.Err() != nil {
			r.Notes = append(r.Notes, "time is up: the rest was not examined")
			break
		}
		part(ctx, r)
	}
	return r, nil
}

// first gets at the certificates, by other offers if need be, and tells whether
// it did.
func (p *Prober) first(ctx context.Context, r *Report) bool {
	m, err := p.meet(ctx, offer{tickets: maxTickets, record: true})
	failed := asFailure(err)
	if failed != nil && slices.Contains([]Kind{Silent, Closed, Refused, Unsuited}, failed.Kind) {
		m, err = p.fallBack(ctx, r, m, failed)
	}
	r.Address = m.at
	if r.Failure = asFailure(err); r.Failure != nil {
		return false
	}
	now, leaf := time.Now(), m.state.PeerCertificates[0]
	chain, issuer := judge(m.state.PeerCertificates, p.cfg, now)
	staple := readStaple(m.state.OCSPResponse, leaf, issuer, now)
	chain.MustStaple, chain.SCTs, chain.SCTsInCert = trust.MustStaple(leaf), len(m.state.SignedCertificateTimestamps), promises(leaf)
	chain.weigh(staple)
	r.Chain, r.Staple = chain, &staple
	r.Agreed = &Agreed{
		Version: tls.VersionName(m.state.Version), CipherSuite: tls.CipherSuiteName(m.state.CipherSuite),
		Group: groupName(m.state), Protocol: m.state.NegotiatedProtocol, Retried: m.state.HelloRetryRequest,
	}
	if m.asked {
		r.ClientCert = &Asked{p.cfg.ClientCert != nil, lateFailure(m.after, m.asked, p.cfg)}
	}
	r.Tickets = countTickets(m)
	return true
}

// fallBack tries what a server that failed the usual offer may still answer: a
// ClientHello of one segment, and old versions.
func (p *Prober) fallBack(ctx context.Context, r *Report, m *meeting, failed *Failure) (*meeting, error) {
	again, err := p.meet(ctx, offer{groups: classic(), tickets: maxTickets, record: true})
	if err == nil {
		r.Notes = append(r.Notes, fmt.Sprintf("the usual ClientHello of %d bytes fails (%s) and one of %d bytes works: "+
			"something on the way, or the server, cannot take a ClientHello of two segments", m.hello, failed.Text, again.hello))
		p.groups = classic()
		return again, nil
	}
	if asFailure(err).Kind == Silent { // it would be as silent a third time
		return m, failed
	}
	again, err = p.meet(ctx, offer{groups: classic(), min: tls.VersionTLS10, max: tls.VersionTLS11, tickets: maxTickets, record: true})
	if err == nil {
		r.Notes = append(r.Notes, "only old versions are spoken, which Warmwire does not use: "+failed.Text)
		return again, nil
	}
	return m, failed
}

// countTickets counts what the server sent. crypto/tls may keep fewer: it throws
// away those without a lifetime.
func countTickets(m *meeting) *Tickets {
	t := &Tickets{Count: max(len(m.tickets), len(m.sessions))}
	for _, one := range m.tickets {
		t.Bytes = max(t.Bytes, one.bytes)
		if s := one.lifetime.Seconds(); s > 0 && (t.Lifetime == nil || s < *t.Lifetime) {
			t.Lifetime = &s
		}
		if n := one.earlyData; m.state.Version == tls.VersionTLS13 && (t.EarlyData == nil || n < *t.EarlyData) {
			t.EarlyData = &n
		}
	}
	if m.after != nil && t.Count == 0 {
		t.Failure = &Failure{Closed, "the server ends the connection: " + m.after.Error(), m.after}
	}
	return t
}

// versions offers each version alone.
func (p *Prober) versions(ctx context.Context, r *Report) {
	for _, v := range []uint16{tls.VersionTLS13, tls.VersionTLS12, tls.VersionTLS11, tls.VersionTLS10} {
		m, err := p.meet(ctx, offer{min: v, max: v})
		if ctx.Err() != nil {
			return
		}
		out := Version{Name: tls.VersionName(v), Spoken: err == nil, Failure: asFailure(err)}
		if err == nil {
			out.CipherSuite = tls.CipherSuiteName(m.state.CipherSuite)
		}
		r.Versions = append(r.Versions, out)
	}
}

// alpn offers each protocol alone, and none.
func (p *Prober) alpn(ctx context.Context, r *Report) {
	if len(p.cfg.ALPN) > 1 {
		r.ALPN = append(r.ALPN, ALPN{Offered: p.cfg.ALPN, Chosen: r.Agreed.Protocol})
	}
	for _, offered := range [][]string{{"h2"}, {"http/1.1"}, {}} {
		m, err := p.meet(ctx, offer{alpn: offered, noALPN: len(offered) == 0})
		if ctx.Err() != nil {
			return
		}
		r.ALPN = append(r.ALPN, ALPN{offered, m.state.NegotiatedProtocol, asFailure(err)})
	}
}

// compare times the handshakes.
func (p *Prober) compare(ctx context.Context, r *Report) {
	c := &Comparison{Verified: p.verify}
	var connect []time.Duration
	var took [Ways][]time.Duration
	ways := [Ways]*Measured{&c.Full, &c.Resumed, &c.Classic}
	resumed := 0
	p.Compare(ctx, p.cfg.Handshakes, func(w Way, h Handshake, failed *Failure) {
		m := ways[w]
		if failed != nil {
			if m.Failed == nil {
				m.Failed = map[Kind]int{}
			}
			m.Failed[failed.Kind]++
			m.Hello = max(m.Hello, h.Hello)
			return
		}
		connect = append(connect, h.Connect)
		m.Hello = max(m.Hello, h.Hello)
		m.Group = h.Group
		if w == Resumed {
			c.Tried++
			if !h.Resumed {
				return // a full one, with a ticket that was not taken
			}
			resumed++
		}
		took[w] = append(took[w], h.Took)
	})
	c.Connect = spread(connect)
	for w := range Ways {
		ways[w].Took = spread(took[w])
	}
	if c.Tried > 0 {
		c.Share = float64(resumed) / float64(c.Tried)
	}
	r.Handshakes = c
	if note := c.segments(); note != "" {
		r.Notes = append(r.Notes, note)
	}
}

// segments says whether the size of the ClientHello matters to this server.
func (c *Comparison) segments() string {
	large, little := c.Full, c.Classic
	switch {
	case large.Took.N == 0 || little.Took.N == 0 || large.Hello <= oneSegment || little.Hello > oneSegment:
		return ""
	case len(large.Failed) > 0 && len(little.Failed) == 0:
		return fmt.Sprintf("some handshakes whose ClientHello takes two segments (%d bytes) fail, and none of those with one (%d bytes)", large.Hello, little.Hello)
	case large.Took.Min > little.Took.Max && large.Took.Median > 1.5*little.Took.Median+slower:
		return fmt.Sprintf("a ClientHello of two segments (%d bytes) is slower than one of %d bytes by %.1f ms: more than its computing takes",
			large.Hello, little.Hello, large.Took.Median-little.Took.Median)
	}
	return ""
}

const (
	// oneSegment is what fits beside the headers of IPv6 and TCP with
	// timestamps into 1500 bytes.
	oneSegment = 1500 - 40 - 32
	// slower is more than the computing of the larger key exchange takes, in
	// milliseconds: ML-KEM costs both sides well below one (guess).
	slower = 10
)

func spread(all []time.Duration) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	slices.Sort(all)
	n := len(all)
	return Spread{n, millis((all[(n-1)/2] + all[n/2]) / 2), millis(all[0]), millis(all[n-1])}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func asFailure(err error) *Failure {
	f, _ := errors.AsType[*Failure](err)
	return f
}
