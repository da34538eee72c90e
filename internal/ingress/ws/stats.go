// SPDX-License-Identifier: Apache-2.0

package ws

import "time"

// Stats describe a relay at one moment.
type Stats struct {
	App, Upstream LegStats
}

// LegStats describe one side.
type LegStats struct {
	BytesIn  int64 // read from it
	BytesOut int64 // written to it
	FramesIn int64
	Heard    time.Time     // when the last byte came from it
	Pings    int64         // sent to it
	RTT      time.Duration // of the last ping that was answered; 0 = none was
	MinRTT   time.Duration
}

// Stats returns the present counters, of a relay that runs or has run.
func (r *Relay) Stats() Stats { return Stats{r.app.stats(), r.up.stats()} }

func (l *leg) stats() LegStats {
	s := LegStats{
		BytesIn: l.in.Load(), BytesOut: l.out.Load(), FramesIn: l.frames.Load(),
		Heard: l.clock.time(time.Duration(l.heard.Load())),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Pings, s.RTT, s.MinRTT = l.pings, l.lastRTT, l.minRTT
	return s
}
