// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes s for people.
func WriteTable(w io.Writer, s *Summary) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"milliseconds"}
	for i := range s.Legs {
		head = append(head, Leg(i).String()+" p50", "p99")
	}
	if len(s.Legs) == 2 {
		head = append(head, "ratio p50", "95 %", "ratio p99")
	}
	row(t, head...)
	for m := range metrics {
		if cells, any := s.metricRow(m); any {
			row(t, cells...)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	s.countRows(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return s.writeReasons(w)
}

// row writes one line. AlignRight needs a tab after the last cell too.
func row(w io.Writer, cells ...string) {
	fmt.Fprintln(w, strings.Join(cells, "\t")+"\t") // a tabwriter keeps its error until Flush
}

func (s *Summary) metricRow(m Metric) (cells []string, any bool) {
	cells = []string{m.title()}
	for _, l := range s.Legs {
		d := l.Dist(m)
		if d.Len() == 0 {
			cells = append(cells, "–", "–")
			continue
		}
		any = true
		cells = append(cells, number(ms(d.Quantile(0.5))), number(ms(d.Quantile(0.99))))
	}
	if len(s.Legs) < 2 {
		return cells, any
	}
	p50, interval, p99 := "–", "–", "–"
	if r, ok := s.Ratio(m, 0.5); ok {
		p50 = number(r.Value)
		if r.Interval != nil {
			interval = number(r.Interval.Low) + "–" + number(r.Interval.High)
		}
	}
	if r, ok := s.Ratio(m, 0.99); ok {
		p99 = number(r.Value)
	}
	return append(cells, p50, interval, p99), any
}

func (s *Summary) countRows(w io.Writer) {
	each := func(name string, cell func(*LegSummary) string) {
		cells := []string{name}
		for _, l := range s.Legs {
			cells = append(cells, cell(l))
		}
		row(w, cells...)
	}
	each("", func(l *LegSummary) string {
		if l == s.Legs[Direct] {
			return Direct.String()
		}
		return Through.String()
	})
	each("calls", func(l *LegSummary) string { return fmt.Sprint(l.Calls) })
	for _, o := range outcomes {
		if s.has(o) {
			each(string(o), func(l *LegSummary) string { return fmt.Sprint(l.Outcomes[o]) })
		}
	}
	each("interruptions", func(l *LegSummary) string { return fmt.Sprint(l.cuts) })
	each("interruptions/min", func(l *LegSummary) string {
		if n := l.InterruptionsPerMinute(); !math.IsNaN(n) && !math.IsInf(n, 0) {
			return number(n)
		}
		return "–"
	})
	each("streaming", func(l *LegSummary) string { return l.streaming.Round(time.Millisecond).String() })
	seconds := s.Elapsed.Seconds()
	each("requests/s", func(l *LegSummary) string { return number(float64(l.Outcomes[OK]) / seconds) })
	each("output tokens/s", func(l *LegSummary) string { return number(float64(l.tokens) / seconds) })
	if s.Limits != (Limits{}) {
		each("goodput/s", func(l *LegSummary) string {
			return fmt.Sprintf("%s (%.0f %%)", number(float64(l.good)/seconds), 100*float64(l.good)/float64(max(l.Calls, 1)))
		})
	}
	each("connections opened", func(l *LegSummary) string { return fmt.Sprint(l.opened) })
	each("TLS full/resumed", func(l *LegSummary) string { return fmt.Sprintf("%d/%d", l.full, l.reuse) })
}

func (s *Summary) has(o Outcome) bool {
	for _, l := range s.Legs {
		if l.Outcomes[o] > 0 {
			return true
		}
	}
	return false
}

// writeReasons says what went wrong, most frequent first, and what the numbers
// cannot say.
func (s *Summary) writeReasons(w io.Writer) error {
	var b strings.Builder
	for i, l := range s.Legs {
		for _, reason := range l.reasons() {
			fmt.Fprintf(&b, "%s: %d × %s\n", Leg(i), l.Reasons[reason], reason)
		}
		if l.counted > 0 {
			fmt.Fprintf(&b, "%s: in %d calls the server did not count its tokens; N is the number of chunks there\n", Leg(i), l.counted)
		}
		if n := l.Outcomes[OK]; n > 0 && n < 100 {
			fmt.Fprintf(&b, "%s: p99 of %d calls lies between the slowest two; 100 calls and more make it a percentile\n", Leg(i), n)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(w, "\n"+b.String())
	return err
}

// number shows three digits that matter.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}
