// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// WriteMarkdown writes the tables of a result.
func WriteMarkdown(w io.Writer, r *Result) error {
	p := &printer{r: r}
	p.printf("%s, %s study, seed %d, %v, %d streams of each way, %s.\n\n", r.Started.Format("2006-01-02 15:04 UTC"), r.Length, r.Seed, r.Took, r.Streams, r.Machine)
	if p.chosen() {
		p.legend()
		p.cuts()
		p.events()
		p.alarms()
		p.stalls()
		p.firsts()
		p.deaths()
		p.idles()
	}
	if p.beats = true; p.chosen() {
		p.heartbeats()
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// A printer writes Markdown tables that can be read as they are.
type printer struct {
	strings.Builder
	r     *Result
	beats bool // it prints the scenarios about heartbeats, otherwise the others
}

// chosen says whether there are scenarios of the kind that is printed now.
func (p *printer) chosen() bool { return len(p.list()) > 0 }

// list is the scenarios that are printed now.
func (p *printer) list() []*ScenarioResult {
	var out []*ScenarioResult
	for _, s := range p.r.Scenarios {
		if s.Heartbeats == p.beats {
			out = append(out, s)
		}
	}
	return out
}

// arms is the ways that they have.
func (p *printer) arms() []ArmInfo {
	if p.beats {
		return p.r.BeatArms
	}
	return p.r.Arms
}

func (p *printer) printf(format string, args ...any) { fmt.Fprintf(&p.Builder, format, args...) }

func (p *printer) legend() {
	rows := [][]string{{"way", "what it is"}}
	for _, a := range p.arms() {
		rows = append(rows, []string{a.Name, a.About})
	}
	p.table(rows)
	rows = [][]string{{"scenario", "what happens", "RTT and spread as measured", "lost", "took"}}
	for _, s := range p.list() {
		rows = append(rows, []string{s.Name, s.About, millis(s.Path.RTT) + " ± " + millis(s.Path.Spread), fmt.Sprintf("%.1f %%", 100*s.Path.Lost), s.Took.Round(time.Second).String()})
	}
	p.table(rows)
}

// of returns the scenarios of a kind that keep holds for.
func (p *printer) of(kind string, keep func(*ScenarioResult) bool) []*ScenarioResult {
	var out []*ScenarioResult
	for _, s := range p.list() {
		if s.Kind == kind && (keep == nil || keep(s)) {
			out = append(out, s)
		}
	}
	return out
}

// matrix prints one cell for each way and scenario.
func (p *printer) matrix(title string, list []*ScenarioResult, cell func(*ScenarioResult, *ArmResult) string) {
	if len(list) == 0 {
		return
	}
	head := []string{"way"}
	for _, s := range list {
		head = append(head, s.Name)
	}
	rows := [][]string{head}
	for i, a := range p.arms() {
		row := []string{a.Name}
		for _, s := range list {
			row = append(row, cell(s, s.Arms[i]))
		}
		rows = append(rows, row)
	}
	p.printf("### %s\n\n", title)
	p.table(rows)
}

func (p *printer) cuts() {
	p.matrix("Cuts a minute of one stream", p.of("streaming", nil), func(_ *ScenarioResult, a *ArmResult) string {
		return fmt.Sprintf("%.2f", a.CutsPerMinute)
	})
}

func (p *printer) events() {
	for _, s := range p.of("streaming", func(s *ScenarioResult) bool { return s.Event != "" }) {
		p.printf("### %s: cuts per %s and stream\n\n%d of them, %.0f %% of the time; interval of 95 %% over them.\n\n", s.Name, s.Event, s.Events, 100*s.TimeDown)
		rows := [][]string{{"way", "per " + s.Event + " and stream", "interval", "cut after it was over", "cuts a minute", "could not open"}}
		for i, a := range p.arms() {
			r := s.Arms[i]
			after := "-"
			if r.Cuts > 0 {
				after = fmt.Sprintf("%d of %d", r.AfterEvent, r.Cuts)
			}
			rows = append(rows, []string{a.Name, fmt.Sprintf("%.2f", r.PerEvent.Mean), fmt.Sprintf("%.2f – %.2f", r.PerEvent.Low, r.PerEvent.High),
				after, fmt.Sprintf("%.2f", r.CutsPerMinute), fmt.Sprint(r.Unopened)})
		}
		p.table(rows)
	}
}

func (p *printer) alarms() {
	p.matrix("False alarms: cuts although nothing was lost for good (late of all WebSocket pings)", p.of("streaming", nil), func(_ *ScenarioResult, a *ArmResult) string {
		if a.Pings > 0 {
			return fmt.Sprintf("%d (%d of %d)", a.FalseAlarms, a.LatePings, a.Pings)
		}
		return fmt.Sprint(a.FalseAlarms)
	})
}

func (p *printer) stalls() {
	p.matrix("Stalls over 1 s a minute of one stream (the longest)", p.of("streaming", nil), func(_ *ScenarioResult, a *ArmResult) string {
		if a.Stalls == 0 {
			return "0"
		}
		return fmt.Sprintf("%.2f (%s)", float64(a.Stalls)/a.Minutes, seconds(a.LongestStall))
	})
}

func (p *printer) firsts() {
	list := p.of("first", nil)
	p.matrix("First frame of a new stream, app's connection new: median / p95 / worst, share over 1 s", list, func(_ *ScenarioResult, a *ArmResult) string {
		cell := fmt.Sprintf("%s / %s / %s, %.0f %%", millis(a.Median), millis(a.P95), millis(a.Worst), 100*a.OverASec)
		if a.Failed > 0 {
			cell += fmt.Sprintf(", %d failed", a.Failed)
		}
		return cell
	})
	p.matrix("First frame against the path's own round trip: median, p95", list, func(s *ScenarioResult, a *ArmResult) string {
		if s.Path.P95 == 0 {
			return "-"
		}
		return fmt.Sprintf("%+.0f %%, %+.0f %%", 100*(float64(a.Median)/float64(s.Path.P50)-1), 100*(float64(a.P95)/float64(s.Path.P95)-1))
	})
	if len(list) < 2 {
		return
	}
	base := list[0]
	p.matrix("Later than in \""+base.Name+"\" by (median, p95)", list[1:], func(s *ScenarioResult, a *ArmResult) string {
		for i := range s.Arms {
			if b := base.Arms[i]; s.Arms[i] == a && b.Median > 0 && b.P95 > 0 {
				return fmt.Sprintf("%+.0f %%, %+.0f %%", 100*(float64(a.Median)/float64(b.Median)-1), 100*(float64(a.P95)/float64(b.P95)-1))
			}
		}
		return "-"
	})
}

func (p *printer) deaths() {
	p.matrix("A death is known after: median (last), streams that did not know in time", p.of("dying", nil), func(s *ScenarioResult, a *ArmResult) string {
		never := ""
		if a.Unknown > 0 {
			never = fmt.Sprintf("%d not within %v", a.Unknown, s.Took.Round(time.Second))
		}
		if a.Known == 0 {
			return never
		}
		return strings.TrimSuffix(fmt.Sprintf("%s (%s), %s", seconds(a.KnownIn), seconds(a.KnownBy), never), ", ")
	})
}

func (p *printer) idles() {
	p.matrix("A call after idleness: answered within 15 s, attempts that failed before, and time to the answer, median (worst)", p.of("idle", nil), func(_ *ScenarioResult, a *ArmResult) string {
		if a.Answered == 0 {
			return fmt.Sprintf("0 of %d, %d failed", a.Asked, a.Failed)
		}
		return fmt.Sprintf("%d of %d, %d failed, %s (%s)", a.Answered, a.Asked, a.Failed, millis(a.Median), millis(a.Worst))
	})
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// table writes rows, of which the first is the head, in columns of even width.
func (p *printer) table(rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	line := func(row []string) {
		for i, cell := range row {
			p.printf("| %s%s ", cell, strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)))
		}
		p.printf("|\n")
	}
	line(rows[0])
	for _, w := range width {
		p.printf("|%s", strings.Repeat("-", w+2))
	}
	p.printf("|\n")
	for _, row := range rows[1:] {
		line(row)
	}
	p.printf("\n")
}
