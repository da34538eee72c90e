// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/warmwire/warmwire/tlspool/inspect"
)

// Handshakes compares ways of shaking hands with one server.
type Handshakes struct {
	Connect Dist // of TCP, before all of them
	Ways    [inspect.Ways]HandshakeSummary
	seed    uint64
}

// A HandshakeSummary is what one way did.
type HandshakeSummary struct {
	Took   Dist           // of those that went this way
	Hello  int            // bytes of the longest ClientHello
	Groups map[string]int // key exchanges
	Failed map[string]int
	Tried  int
}

// notResumed names handshakes that offered a ticket and were full all the same.
const notResumed = "ticket not taken"

func newHandshakes(seed uint64) *Handshakes {
	h := &Handshakes{seed: seed}
	for w := range h.Ways {
		h.Ways[w].Groups, h.Ways[w].Failed = map[string]int{}, map[string]int{}
	}
	return h
}

// CompareHandshakes makes n handshakes of each way, in turn, each over a TCP
// connection of its own, whose time is kept apart. Certificates are verified. step
// is called once in each round. The error is one of the configuration.
func CompareHandshakes(ctx context.Context, cfg inspect.Config, n int, seed uint64, step func()) (*Handshakes, error) {
	p, err := inspect.New(cfg)
	if err != nil {
		return nil, err
	}
	h := newHandshakes(seed)
	p.Compare(ctx, n, func(w inspect.Way, one inspect.Handshake, failed *inspect.Failure) {
		h.add(w, one, failed)
		if w == inspect.Full { // each round has one
			step()
		}
	})
	return h, nil
}

func (h *Handshakes) add(w inspect.Way, one inspect.Handshake, failed *inspect.Failure) {
	s := &h.Ways[w]
	s.Tried++
	s.Hello = max(s.Hello, one.Hello)
	if failed != nil {
		s.Failed[failed.Text]++
		return
	}
	h.Connect.Add(one.Connect)
	if w == inspect.Resumed && !one.Resumed {
		s.Failed[notResumed]++
		return
	}
	s.Took.Add(one.Took)
	s.Groups[one.Version+" "+one.Group]++
}

// Succeeded tells whether any handshake did.
func (h *Handshakes) Succeeded() bool { return h.Connect.Len() > 0 }

// ratios are the medians' and p95s' over those of a full handshake.
func (h *Handshakes) ratios(w inspect.Way) (p50, p95 float64, in Interval, hasInterval bool) {
	s, base := &h.Ways[w], &h.Ways[inspect.Full]
	if w == inspect.Full || s.Took.Len() == 0 || base.Took.Quantile(0.5) == 0 {
		return 0, 0, Interval{}, false
	}
	over := func(q float64) float64 { return float64(s.Took.Quantile(q)) / float64(base.Took.Quantile(q)) }
	in, hasInterval = ratioInterval(&s.Took, &base.Took, 0.5, h.seed)
	return over(0.5), over(0.95), in, hasInterval
}

// WriteHandshakes writes a table for people.
func WriteHandshakes(w io.Writer, h *Handshakes) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row(t, "handshakes, ms", "n", "p50", "p95", "ratio p50", "95 %", "ratio p95", "ClientHello", "  agreed")
	for way := range inspect.Ways {
		s := &h.Ways[way]
		p50, p95, r50, r95, interval := "–", "–", "–", "–", "–"
		if s.Took.Len() > 0 {
			p50, p95 = number(ms(s.Took.Quantile(0.5))), number(ms(s.Took.Quantile(0.95)))
		}
		if a, b, in, ok := h.ratios(way); a > 0 {
			r50, r95 = number(a), number(b)
			if ok {
				interval = number(in.Low) + "–" + number(in.High)
			}
		}
		agreed := ""
		for _, g := range slices.Sorted(maps.Keys(s.Groups)) {
			agreed += "  " + g
		}
		row(t, way.String(), fmt.Sprint(s.Took.Len()), p50, p95, r50, interval, r95, fmt.Sprintf("%d B", s.Hello), agreed)
	}
	if h.Connect.Len() > 0 {
		row(t, "TCP connect", fmt.Sprint(h.Connect.Len()), number(ms(h.Connect.Quantile(0.5))), number(ms(h.Connect.Quantile(0.95))), "", "", "", "", "")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for way := range inspect.Ways {
		s := &h.Ways[way]
		for _, reason := range slices.Sorted(maps.Keys(s.Failed)) {
			if _, err := fmt.Fprintf(w, "%s: %d of %d: %s\n", way, s.Failed[reason], s.Tried, reason); err != nil {
				return err
			}
		}
	}
	return nil
}

// MarshalJSON has times in milliseconds, as the summary of calls.
func (h *Handshakes) MarshalJSON() ([]byte, error) {
	type way struct {
		Tried    int            `json:"tried"`
		N        int            `json:"n"`
		P50      float64        `json:"p50_ms,omitempty"`
		P95      float64        `json:"p95_ms,omitempty"`
		Ratio50  float64        `json:"ratio_p50,omitempty"`
		Interval *Interval      `json:"ratio_p50_interval,omitempty"`
		Ratio95  float64        `json:"ratio_p95,omitempty"`
		Hello    int            `json:"client_hello_bytes,omitempty"`
		Agreed   map[string]int `json:"agreed,omitempty"`
		Failed   map[string]int `json:"failed,omitempty"`
	}
	out := map[string]way{"connect": {
		Tried: h.Connect.Len(), N: h.Connect.Len(), P50: ms(h.Connect.Quantile(0.5)), P95: ms(h.Connect.Quantile(0.95)),
	}}
	for i, name := range [inspect.Ways]string{"full", "resumed", "x25519_only"} {
		s := &h.Ways[i]
		one := way{Tried: s.Tried, N: s.Took.Len(), P50: ms(s.Took.Quantile(0.5)), P95: ms(s.Took.Quantile(0.95)), Hello: s.Hello, Agreed: s.Groups, Failed: s.Failed}
		p50, p95, in, ok := h.ratios(inspect.Way(i))
		if one.Ratio50, one.Ratio95 = p50, p95; ok {
			one.Interval = &in
		}
		out[name] = one
	}
	return json.Marshal(out)
}
