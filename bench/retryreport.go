// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A retryReport is what the study's experiment showed.
type retryReport struct {
	settings
	rounds map[string][][]tried // by hint; in the order of callers
	outage []outcomeOf
	bursts []burst
}

func (r *retryReport) write(took time.Duration) error {
	out := io.Writer(os.Stdout)
	if r.out != "" {
		f, err := os.Create(r.out)
		if err != nil {
			return err
		}
		defer f.Close()
		out = io.MultiWriter(out, f)
	}
	_, err := io.WriteString(out, r.markdown(time.Now(), took))
	return err
}

func (r *retryReport) markdown(now time.Time, took time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s, %s/%s, %d cores, %s; %d rounds, every row %d calls/s for %s a round; medians (least–most).\n",
		now.Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), took.Round(time.Second), r.memory, r.callRate, r.callFor)
	for _, hint := range []string{"0", ""} {
		said := "with `Retry-After: 0`"
		if hint == "" {
			said = "without a word on when to come back"
		}
		fmt.Fprintf(&text, "\n30 %% of all attempts answered 503 after 5 ms, %s:\n\n", said)
		r.table(&text, r.rounds[hint])
	}
	fmt.Fprintf(&text, "\nAn outage of %s, every attempt answered 503, %d calls/s from each:\n\n", r.outageFor, r.callRate/5)
	w := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	line(w, "who tries again", "calls", "attempts", "attempts a call")
	line(w, slices.Repeat([]string{"---"}, 4)...)
	for _, o := range r.outage {
		line(w, o.name, fmt.Sprint(o.tried.calls), fmt.Sprint(o.tried.attempts), fmt.Sprintf("%.3f", float64(o.tried.attempts)/float64(max(1, o.tried.calls))))
	}
	_ = w.Flush() // into memory
	fmt.Fprintf(&text, "\n%d calls at one moment, all answered 429, %d times; when they come for the second time:\n\n", burstCalls, bursts)
	w = tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	line(w, "who tries again", "came again", "fullest 10 ms, × spread evenly over 100 ms")
	line(w, slices.Repeat([]string{"---"}, 3)...)
	for _, b := range r.bursts {
		line(w, b.name, fmt.Sprint(b.again), fmt.Sprintf("%.1f", b.spike))
	}
	_ = w.Flush()
	return text.String()
}

// table prints the callers; times are over those of the first in the same round.
func (r *retryReport) table(out io.Writer, rounds [][]tried) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "who tries again", "answered well, %", "attempts a call", "P50 of those, × no errors", "P95 of those, × no errors", "broken")
	line(w, slices.Repeat([]string{"---"}, 6)...)
	for i, c := range callers() {
		values := func(f func(one, reference tried) float64) (v []float64) {
			for _, round := range rounds {
				v = append(v, f(round[i], round[0]))
			}
			return v
		}
		missed := int64(0)
		for _, round := range rounds {
			missed += round[i].missed
		}
		line(w, c.name,
			cell(values(func(one, _ tried) float64 { return 100 * float64(one.good) / float64(one.calls) }), "%.1f"),
			cell(values(func(one, _ tried) float64 { return float64(one.attempts) / float64(one.calls) }), "%.2f"),
			cell(values(func(one, ref tried) float64 { return one.p50 / ref.p50 }), "%.2f"),
			cell(values(func(one, ref tried) float64 { return one.p95 / ref.p95 }), "%.2f"),
			fmt.Sprint(missed))
	}
	_ = w.Flush()
	var p95 []float64
	for _, round := range rounds {
		p95 = append(p95, round[0].p95/1000)
	}
	fmt.Fprintf(out, "\nP95 without errors: %s ms.\n", cell(p95, "%.0f"))
}
