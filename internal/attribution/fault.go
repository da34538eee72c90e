// SPDX-License-Identifier: Apache-2.0

package attribution

import "time"

// A Fault is what a request suffered from most; "" = nothing that stands out.
type Fault string

// The faults. They are also metric labels.
const (
	FaultProvider  Fault = "slow_provider"
	FaultNetwork   Fault = "network"
	FaultApp       Fault = "slow_reader"
	FaultBuffering Fault = "buffering_hop"
)

// What stands out. All of these are guesses, made so that healthy calls of the big
// APIs have no fault.
const (
	worthNaming = 200 * time.Millisecond // of late bytes
	worthShare  = 10                     // one in so many of the stream's time
	slowOpening = time.Second            // dns, connect and tls
	slowHead    = 10 * time.Second       // until the first token
	longSilence = 2 * time.Second        // inside a stream
	atOnce      = 200 * time.Microsecond // a token: no model is so fast
	fewTokens   = 16                     // too few to say so
)

// A Summary is what is known of a request at its end.
type Summary struct {
	Opening time.Duration // dns, connect and tls
	Head    time.Duration // from the request sent to the first token, or the end of the head
	Parts   Parts
	Longest time.Duration // silence of the provider
	Tokens  int           // events of a stream that carry tokens
}

// Fault names what stands out most. What is late in the stream goes before what was
// slow before it: the app waited for the first and saw the second.
func (s Summary) Fault() Fault {
	best, fault := time.Duration(0), Fault("")
	for _, c := range [...]struct {
		d time.Duration
		f Fault
	}{{s.Parts.App, FaultApp}, {s.Parts.Network, FaultNetwork}, {s.Parts.Held, FaultBuffering}} {
		if c.d >= worthNaming && c.d*worthShare >= s.Parts.Total() && c.d > best {
			best, fault = c.d, c.f
		}
	}
	switch {
	case fault != "":
		return fault
	case s.Tokens >= fewTokens && s.Head >= slowOpening && s.Parts.Total() < time.Duration(s.Tokens)*atOnce:
		return FaultBuffering // all of it was held until its end
	case s.Opening >= slowOpening:
		return FaultNetwork
	case s.Head >= slowHead || s.Longest >= longSilence:
		return FaultProvider
	}
	return ""
}
