// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
)

// serverTiming is W3C Server Timing's field. Our metrics' names have a prefix, so that
// they stand apart from those of the upstream.
const serverTiming = "Server-Timing"

// timingHead adds what is known when the head is sent.
func (e *exchange) timingHead(h http.Header) {
	if !e.t.ServerTiming {
		return
	}
	p := e.rec.Phases
	p.settle(e.account.head.Sub(e.rec.Start))
	addTiming(h, serverTiming, []stage{{"queue", p.Queue}, {"dns", p.DNS}, {"connect", p.Connect}, {"tls", p.TLS}, {"send", p.Send}, {"wait", p.Wait}, {"retry", p.Retry}})
}

// timingTrailer adds the rest, for an app that reads trailers.
func (e *exchange) timingTrailer(h http.Header) {
	if !e.t.ServerTiming || !hasToken(e.r.Header["Te"], "trailers") {
		return
	}
	stream := e.account.stream // a copy: it ends here for this field alone
	var p attribution.Parts
	if e.account.open {
		p = stream.End(time.Now())
	}
	addTiming(h, http.TrailerPrefix+serverTiming, []stage{{"first_token", e.rec.Phases.FirstToken}, {"provider", p.Provider}, {"held", p.Held}, {"network", p.Network}, {"app", p.App}})
}

// A stage is one metric of the field.
type stage struct {
	name string
	took time.Duration
}

// addTiming puts the stages that happened into a field beside what the upstream says in it.
func addTiming(h http.Header, name string, stages []stage) {
	var b []byte
	for _, s := range stages {
		if s.took <= 0 {
			continue
		}
		if b != nil {
			b = append(b, ", "...)
		}
		b = append(b, "warmwire-"+s.name+";dur="...)
		b = strconv.AppendFloat(b, float64(s.took.Microseconds())/1000, 'f', -1, 64)
	}
	if b != nil {
		h[name] = append(slices.Clone(h[name]), string(b)) // it may be the upstream's slice
	}
}
