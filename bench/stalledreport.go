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

// A stalledReport collects the rounds, in the order in which its rows were first seen.
type stalledReport struct {
	settings
	rows  map[bool][]*stalledRow // by eager
	early []*spooledRow
	small []contained
}

type stalledRow struct {
	spec   stallSpec
	rounds []stalled
}

type spooledRow struct {
	spec   spec
	rounds []spooled
}

func newStalledReport(s settings) *stalledReport {
	return &stalledReport{settings: s, rows: make(map[bool][]*stalledRow)}
}

// add takes a round; nil is that of a proxy that is not installed.
func (r *stalledReport) add(sp stallSpec, eager bool, one *stalled) {
	if one == nil {
		return
	}
	for _, row := range r.rows[eager] {
		if row.spec.name == sp.name {
			row.rounds = append(row.rounds, *one)
			return
		}
	}
	r.rows[eager] = append(r.rows[eager], &stalledRow{sp, []stalled{*one}})
}

func (r *stalledReport) addSpooled(sp spec, one *spooled) {
	if one == nil {
		return
	}
	for _, row := range r.early {
		if row.spec.name == sp.name {
			row.rounds = append(row.rounds, *one)
			return
		}
	}
	r.early = append(r.early, &spooledRow{sp, []spooled{*one}})
}

func (r *stalledReport) write(took time.Duration) error {
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

func (r *stalledReport) markdown(now time.Time, took time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s, %s/%s, %d cores, %s, %d rounds with fresh processes, medians (least–most).\n",
		now.Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), took.Round(time.Second), r.memory)
	for _, eager := range []bool{false, true} {
		fmt.Fprintf(&text, "\n%d readers of %d MB each, which %s:\n\n", r.stalled, stalledBytes/1_000_000,
			map[bool]string{false: "never read", true: fmt.Sprintf("read %d MiB at full speed and then stop", eagerBytes>>20)}[eager])
		w := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
		line(w, "proxy", "idle, MiB", "with the readers, MiB", "peak, MiB", "peak, % of budget + idle", "read ahead, KiB each", "20 other streams: p99 lateness, × alone", "their tokens, × alone", "cut")
		line(w, slices.Repeat([]string{"---"}, 9)...)
		for _, row := range r.rows[eager] {
			line(w, row.cells()...)
		}
		_ = w.Flush() // into memory
	}
	r.spooledTable(&text)
	r.containedTable(&text)
	return text.String()
}

func (r *stalledRow) cells() []string {
	values := func(f func(stalled) float64) (out []float64) {
		for _, one := range r.rounds {
			out = append(out, f(one))
		}
		return out
	}
	share, cut := "no budget", 0
	if r.spec.limit > 0 {
		share = cell(values(func(s stalled) float64 { return 100 * float64(s.Peak) / float64(r.spec.limit+s.Base) }), "%.0f")
	}
	for _, one := range r.rounds {
		cut += one.Cut
	}
	return []string{
		r.spec.name,
		cell(values(func(s stalled) float64 { return mebi(s.Base) }), "%.0f"),
		cell(values(func(s stalled) float64 { return mebi(s.Steady) }), "%.0f"),
		cell(values(func(s stalled) float64 { return mebi(s.Peak) }), "%.0f"),
		share,
		cell(values(func(s stalled) float64 { return float64(s.Taken) / (1 << 10) }), "%.0f"),
		cell(values(func(s stalled) float64 { return s.BesideP99 / s.AloneP99 }), "%.2f"),
		cell(values(func(s stalled) float64 { return s.Tokens }), "%.3f"),
		fmt.Sprint(cut),
	}
}

func mebi(n int64) float64 { return float64(n) / (1 << 20) }

func (r *stalledReport) spooledTable(out io.Writer) {
	fmt.Fprintf(out, "\n%d answers of %d MiB that nobody reads until the upstream is done, or has waited for 10 s:\n\n", spoolReaders, spoolBytes>>20)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "proxy", "upstream done after, s", "idle, MiB", "peak, MiB", "byte for byte")
	line(w, slices.Repeat([]string{"---"}, 5)...)
	for _, row := range r.early {
		var done, base, most []float64
		equal := 0
		for _, one := range row.rounds {
			base, most, equal = append(base, mebi(one.Base)), append(most, mebi(one.Peak)), equal+one.Equal
			if one.Done > 0 {
				done = append(done, one.Done.Seconds())
			}
		}
		first := "it waited"
		if len(done) == len(row.rounds) {
			first = cell(done, "%.1f")
		}
		line(w, row.spec.name, first, cell(base, "%.0f"), cell(most, "%.0f"), fmt.Sprintf("%d of %d", equal, len(row.rounds)*spoolReaders))
	}
	_ = w.Flush()
}

func (r *stalledReport) containedTable(out io.Writer) {
	if len(r.small) == 0 {
		return
	}
	fmt.Fprintf(out, "\nA control group of %d MB, %d clients that read 20 kB/s of %d MB for %s and then the rest at full speed:\n\n",
		containerBytes/1_000_000, containerReaders, containerAnswer/1_000_000, 5*r.slowFor)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line(w, "proxy", "most memory of the group, MiB", "resident at the end, MiB", "socket buffers beside it, MiB", "killed by the kernel", "byte for byte")
	line(w, slices.Repeat([]string{"---"}, 6)...)
	for _, one := range r.small {
		line(w, one.spec.name, fmt.Sprintf("%.0f", mebi(one.peak)), fmt.Sprintf("%.0f", mebi(one.rss)), fmt.Sprintf("%.0f", mebi(one.sock)), fmt.Sprint(one.kills),
			fmt.Sprintf("%d of %d", one.whole, containerReaders))
	}
	_ = w.Flush()
}
