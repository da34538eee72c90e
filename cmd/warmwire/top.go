// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/warmwire/warmwire/internal/config"
)

// Sequences of ECMA-48 and xterm that all terminals of today know.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // another screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	nextFrame   = "\x1b[H" // home; each line then ends with clearLine
	clearLine   = "\x1b[K" //
	clearRest   = "\x1b[J" //
)

func topCommand(path *string) *cobra.Command {
	var once bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show in the terminal what the running Warmwire does: streams, upstreams, memory",
		Long: "Shows streams, upstreams and memory of the running Warmwire, as its dashboard does, also over a Unix socket.\n" +
			"Keys: q quits, s sorts by age, lag or bytes, space halts. Without a terminal, or with --once, it prints one picture and ends.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			if !cfg.Admin.Enabled() {
				return fmt.Errorf("top: admin.address is off, so there is nobody to ask")
			}
			if every < 100*time.Millisecond {
				return fmt.Errorf("%w: top: --every is %v, want at least 100ms", errUsage, every)
			}
			t := &top{cfg: cfg, every: every}
			out := cmd.OutOrStdout()
			screen, isFile := out.(*os.File)
			if once || !isFile || !term.IsTerminal(int(screen.Fd())) {
				if err := t.read(cmd.Context()); err != nil {
					return err
				}
				_, err = io.WriteString(out, t.draw(10_000))
				return err
			}
			return t.run(cmd.Context(), screen)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one picture and end")
	cmd.Flags().DurationVar(&every, "every", time.Second, "time between two pictures")
	return cmd
}

// A top is one run of the command.
type top struct {
	cfg   *config.Config
	every time.Duration

	status  topStatus
	streams []topStream
	at      time.Time
	before  map[uint64]int64 // bytes of streams in the picture before
	since   time.Duration    // that is how old
	order   int
	halted  bool
}

type topStatus struct {
	Version  string
	Uptime   string
	Ready    bool
	Draining bool
	Running  int
	Memory   struct {
		Used, Limit int64
		Pressure    string
		Waiting     int
	}
	Upstreams []struct {
		Name    string
		Origins map[string]struct {
			Connections []struct {
				Protocol string
				InFlight int `json:"in_flight"`
				Suspect  bool
			}
			Waiting   int
			IdleLimit string `json:"idle_limit"`
		}
	}
}

type topStream struct {
	ID       uint64
	Upstream string
	Mode     string
	Age      string
	Status   int
	BytesOut int64  `json:"bytes_out"`
	LagBytes int64  `json:"lag_bytes"`
	LagTime  string `json:"lag_time"`
	Absent   bool
	Beat     *struct{ Verdict, RTT string } `json:"upstream_heartbeat"`
	Now      *struct {
		Fault, Text string
		RTT         float64 `json:"rtt_ms"`
	}
}

// topOrders are what streams are sorted by.
var topOrders = []struct {
	name string
	less func(a, b topStream) int
}{
	{"age", func(a, b topStream) int { return cmp.Compare(a.ID, b.ID) }},
	{"lag", func(a, b topStream) int { return cmp.Compare(b.LagBytes, a.LagBytes) }},
	{"bytes", func(a, b topStream) int { return cmp.Compare(b.BytesOut, a.BytesOut) }},
}

// run shows pictures until q, the end of input, or ctx.
func (t *top) run(ctx context.Context, screen *os.File) error {
	keys := make(chan byte)
	if stdin := int(os.Stdin.Fd()); term.IsTerminal(stdin) {
		old, err := term.MakeRaw(stdin)
		if err != nil {
			return fmt.Errorf("top: %w", err)
		}
		defer func() { _ = term.Restore(stdin, old) }()
		go readKeys(ctx, keys) // ends with the process: a read of a terminal cannot be broken off
	}
	if _, err := io.WriteString(screen, enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(screen, leaveScreen) }()
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for {
		var text string
		if err := t.read(ctx); err != nil && ctx.Err() == nil {
			text = err.Error() + "\n" // it may come back
		} else {
			_, height, err := term.GetSize(int(screen.Fd()))
			if err != nil || height < 5 {
				height = 24
			}
			text = t.draw(height - 1)
		}
		frame := nextFrame + strings.ReplaceAll(text, "\n", clearLine+"\r\n") + clearRest
		if _, err := io.WriteString(screen, frame); err != nil {
			return err
		}
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				again = !t.halted
			case key := <-keys:
				switch key {
				case 'q', 3, 4: // and what Ctrl-C and Ctrl-D send in raw mode
					return nil
				case 's':
					t.order = (t.order + 1) % len(topOrders)
				case ' ':
					t.halted = !t.halted
				}
				again = true
			}
		}
	}
}

// readKeys hands on what is typed; the end of input is Ctrl-D.
func readKeys(ctx context.Context, keys chan<- byte) {
	var b [1]byte
	for {
		if _, err := os.Stdin.Read(b[:]); err != nil {
			b[0] = 4
		}
		select {
		case keys <- b[0]:
		case <-ctx.Done():
			return
		}
	}
}

// read asks the admin listener.
func (t *top) read(ctx context.Context) error {
	if t.halted {
		return nil
	}
	var status topStatus
	var streams []topStream
	for _, part := range []struct {
		path string
		into any
	}{{"/v1/status", &status}, {"/v1/streams", &streams}} {
		if err := readRunning(ctx, t.cfg, part.path, part.into); err != nil {
			return fmt.Errorf("top: %w", err)
		}
	}
	t.before = make(map[uint64]int64, len(t.streams))
	for _, s := range t.streams {
		t.before[s.ID] = s.BytesOut
	}
	now := time.Now()
	t.since, t.at = now.Sub(t.at), now
	t.status, t.streams = status, streams
	return nil
}

// draw makes a picture of at most height lines.
func (t *top) draw(height int) string {
	var b strings.Builder
	state := "ready"
	switch {
	case t.status.Draining:
		state = "draining"
	case !t.status.Ready:
		state = "not ready"
	}
	if t.halted {
		state += ", halted"
	}
	m := t.status.Memory
	_, _ = fmt.Fprintf(&b, "warmwire %s  up %s  %s  running %d  memory %s of %s (%s, %d wait)\n\n", t.status.Version, t.status.Uptime, state, t.status.Running,
		size(m.Used), size(m.Limit), m.Pressure, m.Waiting)
	t.drawUpstreams(&b)
	order := topOrders[t.order]
	slices.SortStableFunc(t.streams, order.less)
	_, _ = fmt.Fprintf(&b, "\nStreams by %s (s)\n", order.name)
	t.drawStreams(&b)
	lines := strings.SplitAfter(b.String(), "\n")
	if len(lines) > height+1 {
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines\n", len(lines)-height))
	}
	return strings.Join(lines, "")
}

func (t *top) drawUpstreams(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "UPSTREAM\tORIGIN\tCONNECTIONS\tPROTOCOLS\tREQUESTS\tWAITING\tIDLE LIMIT\tSTATE")
	for _, u := range t.status.Upstreams {
		for _, origin := range slices.Sorted(maps.Keys(u.Origins)) {
			o := u.Origins[origin]
			var protocols []string
			requests, state := 0, "warm"
			for _, c := range o.Connections {
				if !slices.Contains(protocols, c.Protocol) {
					protocols = append(protocols, c.Protocol)
				}
				requests += c.InFlight
				if c.Suspect {
					state = "suspect"
				}
			}
			if len(o.Connections) == 0 {
				state = "cold"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%d\t%s\t%s\n", u.Name, origin, len(o.Connections), strings.Join(protocols, ","), requests, o.Waiting, o.IdleLimit, state)
		}
	}
	_ = w.Flush() // into memory
}

func (t *top) drawStreams(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ID\tUPSTREAM\tMODE\tAGE\tSTATUS\tTO THE APP\tA SECOND\tAPP BEHIND\tRTT\tNOTE")
	for _, s := range t.streams {
		rate, behind, rtt, note := "", "", "", ""
		if old, there := t.before[s.ID]; there && t.since > 0 {
			rate = size(int64(float64(s.BytesOut-old) / t.since.Seconds()))
		}
		if s.LagBytes > 0 {
			behind = strings.TrimSpace(size(s.LagBytes) + " " + s.LagTime)
		}
		if s.Beat != nil {
			rtt, note = s.Beat.RTT, s.Beat.Verdict
		}
		if s.Now != nil && s.Now.RTT > 0 {
			rtt = time.Duration(s.Now.RTT * float64(time.Millisecond)).Round(100 * time.Microsecond).String()
		}
		if s.Absent {
			note = "its app is away"
		} else if s.Now != nil && s.Now.Fault != "" {
			note = s.Now.Text
		} else if lag, err := time.ParseDuration(s.LagTime); err == nil && lag > time.Second {
			note = "the app reads slowly"
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", s.ID, s.Upstream, s.Mode, s.Age, s.Status, size(s.BytesOut), rate, behind, rtt, note)
	}
	_ = w.Flush() // into memory
}

// size writes bytes for people.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
