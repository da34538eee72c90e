// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/lab"
	"github.com/warmwire/warmwire/internal/netlab"
)

func labCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "A bad network on this machine: run a program in it, or study cut streams (Linux, root)",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(labRunCommand(), labStudyCommand())
	for _, c := range cmd.Commands() {
		c.Args = usageArgs(c.Args)
	}
	return cmd
}

func labStudyCommand() *cobra.Command {
	var length, jsonFile string
	var check bool
	var opt lab.Options
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Measure how streams are cut and delayed on a bad network, direct and through Warmwire",
		Long: `Makes a network of two hosts, lets jitter, loss, blackouts and more happen to it, and counts what
becomes of streams: of clients that reach the server directly with the limits clients are given, and
of clients that go through this Warmwire. Prints Markdown tables.

Scenarios: ` + strings.Join(lab.ScenarioNames(), "; ") + `.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opt.Length, err = lab.ParseLength(length); err == nil {
				err = opt.Validate()
			}
			if err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			if opt.Warmwire, err = os.Executable(); err != nil {
				return err
			}
			if opt.Seed == 0 {
				opt.Seed = someSeed()
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return labStudy(ctx, opt, jsonFile, check, cmd.OutOrStdout())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&length, "length", string(lab.Short), "how `long`: smoke (about a minute), short (about six minutes) or full (about an hour and a quarter)")
	fl.StringSliceVar(&opt.Only, "only", nil, "`scenarios` to run, by name, with commas between them; streams or heartbeats for all of that kind")
	fl.BoolVar(&check, "check", false, "fail if Warmwire's heartbeats miss their aims")
	fl.Uint64Var(&opt.Seed, "seed", 0, "of the network and its events; 0 takes another one each time and shows it")
	fl.StringVar(&jsonFile, "json", "", "write the result to this `file` too")
	return cmd
}

// someSeed is another one each time, and short enough for any JSON reader.
func someSeed() uint64 { return uint64(time.Now().UnixNano()) >> 10 }

func labStudy(ctx context.Context, opt lab.Options, jsonFile string, check bool, out io.Writer) (err error) {
	var file *os.File
	if jsonFile != "" { // before the work, which would be lost with a bad path
		if file, err = os.OpenFile(jsonFile, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
	}
	opt.Progress = func(name string, takes time.Duration) {
		fmt.Fprintf(os.Stderr, "lab: %s, about %v\n", name, takes.Round(time.Second))
	}
	result, ended := lab.Study(ctx, opt)
	if result == nil {
		return ended
	}
	// Also of a study that was ended early: what it has measured took its time.
	if file != nil {
		enc := json.NewEncoder(file)
		enc.SetIndent("", "  ")
		if err := errors.Join(file.Truncate(0), enc.Encode(result)); err != nil {
			return errors.Join(ended, fmt.Errorf("--json: %w", err))
		}
	}
	err = errors.Join(ended, lab.WriteMarkdown(out, result))
	if missed := result.Missed(); check && len(missed) > 0 {
		err = errors.Join(err, fmt.Errorf("heartbeats missed their aims: %s", strings.Join(missed, "; ")))
	}
	return err
}

// labFlags is the network of lab run as the command line says it.
type labFlags struct {
	rtt, spread, spreadTime time.Duration
	loss, burst, duplicate  string
	reorder                 string
	reorderDelay            time.Duration
	rate, udpRate           string
	queue                   time.Duration
	mtu                     int
	blockUDP, unordered     bool
	blackout, spike         string
	nat                     netlab.NAT
	natIdle, natUDPIdle     time.Duration
	addressEvery            time.Duration
	seed                    uint64
}

func labRunCommand() *cobra.Command {
	var f labFlags
	var places strings.Builder
	for _, p := range lab.Places() {
		fmt.Fprintf(&places, "  %-10s $%-21s %s\n", p[0], p[1], p[2])
	}
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD [ARG…]",
		Short: "Run CMD on one host of a bad network; the built-in model API is on the other",
		Long: `Makes a network of two hosts with the given faults, starts the built-in model API on the far one and
this Warmwire on the near one, and runs CMD there. CMD gets, in its arguments and its environment:

` + places.String() + `
Nothing of it touches the machine's own network, and it is gone when CMD ends.`,
		Example: `  warmwire lab run --rtt 80ms --spread 35ms --loss 1% -- warmwire measure {tls}/v1/chat/completions --ca-file {ca} --through {through}
  warmwire lab run --rtt 80ms --blackout 1s-4s/10s -- curl -N {through}/v1/chat/completions -d '{"model":"mock?tokens=400&gap=50ms","stream":true,"messages":[]}'
  warmwire lab run --nat-idle 10s -- bash`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			network, err := f.network()
			if err == nil {
				err = network.Validate()
			}
			if err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return lab.Run{Network: network, Warmwire: self, Command: args, AddressEvery: f.addressEvery,
				Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}.Do(ctx)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *labFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SetInterspersed(false) // CMD's own flags are CMD's
	fl.DurationVar(&f.rtt, "rtt", 0, "round trip `time`, half of it each way")
	fl.DurationVar(&f.spread, "spread", 0, "by how much the round trip `time` wanders, up and down")
	fl.DurationVar(&f.spreadTime, "spread-time", 2*time.Second, "how long it takes to wander; 0s draws each packet's delay anew")
	fl.BoolVar(&f.unordered, "unordered", false, "packets with another delay may overtake each other")
	fl.StringVar(&f.loss, "loss", "0", "`share` of packets lost each way, as in 1% or 0.01")
	fl.StringVar(&f.burst, "burst", "", "loss in bursts, as `share`/packets: 1%/10 loses 1 % in bursts of 10 on average")
	fl.StringVar(&f.reorder, "reorder", "0", "`share` of packets that are late by --reorder-delay")
	fl.DurationVar(&f.reorderDelay, "reorder-delay", 0, "how late those are")
	fl.StringVar(&f.duplicate, "duplicate", "0", "`share` of packets that come twice")
	fl.StringVar(&f.rate, "rate", "", "`bits` a second each way, as in 4M; needs --queue")
	fl.DurationVar(&f.queue, "queue", 0, "longest `time` that packets wait for the rate")
	fl.StringVar(&f.udpRate, "udp-rate", "", "`bits` a second of UDP, what is above is dropped")
	fl.BoolVar(&f.blockUDP, "block-udp", false, "all UDP vanishes")
	fl.IntVar(&f.mtu, "mtu", 0, "packets of more `bytes` vanish without a word")
	fl.StringVar(&f.blackout, "blackout", "", "nothing passes for `shortest-longest/every`, as in 1s-4s/10s or 2s/30s")
	fl.StringVar(&f.spike, "spike", "", "everything is held, not lost, for `shortest-longest/every`")
	fl.DurationVar(&f.natIdle, "nat-idle", 0, "a NAT forgets TCP flows that are idle for this `time`")
	fl.DurationVar(&f.natUDPIdle, "nat-udp-idle", 0, "the same of UDP, which goes on from another port (default: --nat-idle)")
	fl.BoolVar(&f.nat.Reset, "nat-reset", false, "and resets TCP of a flow that it does not know, instead of dropping it")
	fl.BoolVar(&f.nat.AtServer, "nat-at-server", false, "it stands before the server, as a load balancer does")
	fl.DurationVar(&f.addressEvery, "address-every", 0, "the near host moves to another network this `often`")
	fl.Uint64Var(&f.seed, "seed", 0, "of everything that is drawn")
}

// network turns the flags into settings; what cannot be is found by Validate.
func (f *labFlags) network() (netlab.Config, error) {
	c := netlab.Config{Seed: f.seed, NAT: f.nat}
	if f.natIdle != 0 || f.natUDPIdle != 0 {
		c.NAT.On, c.NAT.Idle, c.NAT.UDPIdle = true, f.natIdle, f.natUDPIdle
	}
	if f.addressEvery < 0 {
		return c, fmt.Errorf("--address-every %v is negative", f.addressEvery)
	}
	l := netlab.Link{Delay: f.rtt / 2, Jitter: f.spread / 2, Unordered: f.unordered, Queue: f.queue,
		ReorderDelay: f.reorderDelay, MTU: f.mtu, BlockUDP: f.blockUDP}
	if f.spread > 0 {
		l.JitterTime = f.spreadTime
	}
	var err error
	share := func(name, value string, to *float64) {
		if serr := parseShare(value, to); serr != nil {
			err = errors.Join(err, fmt.Errorf("--%s: %w", name, serr))
		}
	}
	share("loss", f.loss, &l.Loss)
	share("reorder", f.reorder, &l.Reorder)
	share("duplicate", f.duplicate, &l.Duplicate)
	for _, step := range []struct {
		name, value string
		parse       func(string) error
	}{
		{"burst", f.burst, func(s string) error { return parseBurst(s, &l.Burst) }},
		{"rate", f.rate, func(s string) error { return parseRate(s, &l.Rate) }},
		{"udp-rate", f.udpRate, func(s string) error { return parseRate(s, &l.UDPRate) }},
		{"blackout", f.blackout, func(s string) error { return parseSchedule(s, &l.Outages) }},
		{"spike", f.spike, func(s string) error { return parseSchedule(s, &l.Spikes) }},
	} {
		if step.value == "" {
			continue
		}
		if serr := step.parse(step.value); serr != nil {
			err = errors.Join(err, fmt.Errorf("--%s: %w", step.name, serr))
		}
	}
	c.Up, c.Down = l, l
	return c, err
}

// parseShare reads 1% or 0.01.
func parseShare(s string, to *float64) error {
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return fmt.Errorf("%q is no share: want one as in 1%% or 0.01", s)
	}
	if percent {
		v /= 100
	}
	*to = v
	return nil
}

// parseBurst reads share/packets and finds the chances that give them: of all
// packets the share is in the bad state, where all are lost.
func parseBurst(s string, to *netlab.Burst) error {
	share, packets, ok := strings.Cut(s, "/")
	length, err := strconv.ParseFloat(packets, 64)
	var lost float64
	if err = errors.Join(err, parseShare(share, &lost)); !ok || err != nil || !(lost > 0 && lost < 1) || !(length >= 1) {
		return fmt.Errorf("%q: want the share that is lost and the packets of a burst, as in 1%%/10", s)
	}
	to.Leave = 1 / length
	to.Enter = to.Leave * lost / (1 - lost)
	return nil
}

// parseRate reads bits a second with k, M or G.
func parseRate(s string, to *int64) error {
	units := map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9}
	number, unit := s, 1.0
	if u, ok := units[s[len(s)-1:]]; ok {
		number, unit = s[:len(s)-1], u
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0 && v*unit < 1e15) {
		return fmt.Errorf("%q is no rate: want bits a second, as in 4M or 64k", s)
	}
	*to = int64(v * unit)
	return nil
}

// parseSchedule reads shortest-longest/every or length/every.
func parseSchedule(s string, to *[]netlab.Schedule) error {
	lengths, every, ok := strings.Cut(s, "/")
	short, long, two := strings.Cut(lengths, "-")
	var sched netlab.Schedule
	var errs [3]error
	sched.Length, errs[0] = time.ParseDuration(short)
	sched.Every, errs[1] = time.ParseDuration(every)
	if two {
		sched.MaxLength, errs[2] = time.ParseDuration(long)
	}
	if err := errors.Join(errs[:]...); err != nil || !ok {
		return fmt.Errorf("%q: want how long and how often, as in 1s-4s/10s or 2s/30s", s)
	}
	sched.First = sched.Every // something works first
	*to = []netlab.Schedule{sched}
	return nil
}
