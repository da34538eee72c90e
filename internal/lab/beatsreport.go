// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"strings"
)

// heartbeats prints the scenarios about them.
func (p *printer) heartbeats() {
	p.printf("### Heartbeats\n\nEach scenario had a network and a Warmwire of its own; they ran side by side.\n\n")
	p.legend()
	p.events()
	nat := func(s *ScenarioResult) bool { return s.NATIdle > 0 }
	p.matrix("Cuts (of these false: nothing was lost); streams that were dead in the end and nobody knew", p.of("streaming", func(s *ScenarioResult) bool { return !nat(s) }),
		func(_ *ScenarioResult, a *ArmResult) string {
			return fmt.Sprintf("%d (%d); %d", a.Cuts, a.FalseAlarms, a.Beats.Unnoticed)
		})
	p.matrix("Behind a NAT that forgets: cuts, of streams that had been cut before, dead in the end and nobody knew", p.of("streaming", nat),
		func(_ *ScenarioResult, a *ArmResult) string {
			return fmt.Sprintf("%d, %d, %d", a.Cuts, a.Beats.Again, a.Beats.Unnoticed)
		})
	p.matrix("What it costs: pings of WebSockets, packets (all, both ways) and KB an hour and stream", p.of("streaming", nat), costs)
	p.matrix("What Warmwire thought: doubts, path down, dead flow; false alarms", p.list(), func(_ *ScenarioResult, a *ArmResult) string {
		w := a.Beats.Warmwire
		if w == nil {
			return "-"
		}
		return fmt.Sprintf("%d, %d, %d; %d", w.Doubts, w.PathDown, w.DeadFlow, w.FalseAlarms)
	})
	p.deaths()
	p.matrix("The same from the first packet that nobody answered, and from Warmwire's doubt, to the first stream that knew", p.of("dying", nil),
		func(_ *ScenarioResult, a *ArmResult) string {
			asked, doubt := "-", "-"
			if a.Beats.FromAsked > 0 {
				asked = fmt.Sprintf("%.2f s", a.Beats.FromAsked.Seconds())
			}
			if a.Beats.FromDoubt > 0 {
				doubt = fmt.Sprintf("%.2f s", a.Beats.FromDoubt.Seconds())
			}
			return asked + ", " + doubt
		})
	missed := p.r.Missed()
	if len(missed) == 0 {
		missed = []string{"none."}
	}
	p.printf("Aims that were missed (%v cuts per event and stream; no cut and no false alarm where nothing is lost; no second cut behind a NAT; %v and %d round trips from a doubt to the verdict): %s\n\n",
		mostCuts, judgement, judgeRTTs, strings.Join(missed, "; "))
}

func costs(_ *ScenarioResult, a *ArmResult) string {
	pings := "-"
	if a.Beats.Pings > 0 {
		pings = fmt.Sprintf("%.0f", a.Beats.Pings)
	}
	return fmt.Sprintf("%s, %.0f, %.0f", pings, a.Beats.Packets, a.Beats.Bytes/1000)
}
