// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/dnscache"
	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/reach"
	"github.com/warmwire/warmwire/internal/sidecar"
	"github.com/warmwire/warmwire/tlspool/inspect"
)

// doctorLimit bounds the examination of one host.
const doctorLimit = 20 * time.Second

// doctorFlags is what the command line says.
type doctorFlags struct {
	json, noTLS, shell bool
	caFile             string
}

func doctorCommand(path *string) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [HOST[:PORT]...]",
		Short: "Say why calls of this shell go astray, and examine hosts: resolvers, TLS",
		Long: `Without HOST, doctor first looks at this shell and machine: whether what its proxy variables
and base URLs name is a Warmwire, which variables contradict each other or are ignored by
which client, what NO_PROXY excludes, whether Node and Java are told, whether the
authority is valid, permits the hosts of intercept.hosts and is in the files that
variables name and in the stores of system and browsers, and the limit of file
descriptors. Each finding has the command that mends it.

Then, or with HOST only, it examines hosts: the upstreams of the configuration file, or
those named.

Ask every resolver for a host, and say how fast it is and in what it differs; then
examine the TLS of the host.

Asked are the system's resolvers, those of dns.resolvers, and with none of them
listed the built-in encrypted ones, each twice: cold with its connection, and
again over the same one.

Then the certificates are shown and verified, with what is missing, and the staple,
versions, ALPN, key exchange and tickets, and full handshakes are timed beside
resumed ones. That takes some 25 connections, over which nothing is asked. Before them
the host is tried over IPv4, IPv6 and QUIC, and asked for the head of its front page, which
shows how its clock differs and whether a login page stands before it. All go
directly to the address that Warmwire would use, also where a parent proxy is set.

A host that is an upstream is met with its tls settings, without ECH. The exit code is 1
if there is a finding that is an error, no resolver knows a host, or its certificate
does not verify.`,
		Example: `  warmwire doctor                       # this shell, and the file's upstreams
  warmwire doctor --shell               # this shell only
  warmwire doctor api.openai.com --json
  warmwire exec -- warmwire doctor      # what a program beneath exec meets`,
		RunE: func(cmd *cobra.Command, hosts []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			var targets []target
			switch {
			case !f.shell:
				targets, err = f.targets(cfg, hosts)
			case len(hosts) > 0:
				err = fmt.Errorf("%w: doctor: --shell looks at no host", errUsage)
			}
			if err != nil {
				return err
			}
			d := &doctor{out: cmd.OutOrStdout(), flags: f, asked: map[string]*examined{}}
			if len(hosts) == 0 {
				d.found = shellFindings(cmd.Context(), cfg)
			}
			cfg.DNS.CacheFile = "" // the running Warmwire's
			r, err := sidecar.Resolver(cfg, dnscache.Config{}, nil)
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }()
			d.names = r
			return d.examine(cmd.Context(), targets, len(hosts) == 0)
		},
	}
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&f.shell, "shell", false, "look at this shell and machine only")
	cmd.Flags().BoolVar(&f.noTLS, "no-tls", false, "connect to no host: ask resolvers only")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "", "PEM `file` of authorities to trust beside the system's")
	return cmd
}

// A finding is one resolver's answer for machines.
type finding struct {
	Resolver  string       `json:"resolver"`
	Encrypted bool         `json:"encrypted"`
	System    bool         `json:"system"`
	Addrs     []netip.Addr `json:"addresses"`
	TTL       float64      `json:"ttl_seconds"`
	Cold      float64      `json:"cold_ms"`
	Warm      float64      `json:"warm_ms"`
	Error     string       `json:"error,omitempty"`
	Notes     []string     `json:"notes,omitempty"`
}

// A doctor examines targets one after another.
type doctor struct {
	out   io.Writer
	names *dnscache.Resolver
	flags doctorFlags
	asked map[string]*examined // names, so that two upstreams of one host are looked up once
	found []clientenv.Finding
}

// A report is all of it for machines.
type report struct {
	Findings []clientenv.Finding `json:"findings"`
	Hosts    []*examined         `json:"hosts"`
}

// examined is one target's report for machines.
type examined struct {
	Host     string          `json:"host"`
	Upstream string          `json:"upstream,omitempty"`
	DNS      []finding       `json:"dns,omitempty"`
	Reach    *reach.Report   `json:"reach,omitempty"`
	TLS      *inspect.Report `json:"tls,omitempty"`

	known bool // by a resolver, or no name
}

// examine reports on this shell, on each target, and then what is wrong.
func (d *doctor) examine(ctx context.Context, targets []target, shell bool) error {
	all := []*examined{}
	var unknown, faults []string
	if shell && !d.flags.json {
		if err := printShell(d.out, d.found); err != nil {
			return err
		}
	}
	for _, t := range targets {
		e, err := d.lookUp(ctx, t)
		if err != nil {
			return err
		}
		all = append(all, e)
		var found []clientenv.Finding
		if !d.flags.noTLS {
			found = d.reach(ctx, t, e)
			d.found = append(d.found, found...)
		}
		if t.tls && !d.flags.noTLS {
			if fault := d.handshakes(ctx, t, e); fault != "" {
				faults = append(faults, fault)
			}
		}
		if !e.known && !slices.Contains(unknown, t.host) {
			unknown = append(unknown, t.host)
		}
		if err := d.print(e, found); err != nil {
			return err
		}
	}
	if d.flags.json {
		e := json.NewEncoder(d.out)
		e.SetIndent("", "  ")
		if err := e.Encode(report{append([]clientenv.Finding{}, d.found...), all}); err != nil {
			return err
		}
	}
	if n := errorsIn(d.found); n > 0 {
		faults = append(faults, fmt.Sprintf("%d errors", n))
	}
	if len(unknown) > 0 {
		faults = append(faults, "no resolver has an address of "+strings.Join(unknown, ", "))
	}
	if len(faults) > 0 {
		return fmt.Errorf("doctor: %s", strings.Join(faults, "; "))
	}
	return nil
}

func errorsIn(found []clientenv.Finding) (n int) {
	for _, f := range found {
		if f.Level == clientenv.Error {
			n++
		}
	}
	return n
}

// lookUp asks all resolvers for a name that has not been asked for yet.
func (d *doctor) lookUp(ctx context.Context, t target) (*examined, error) {
	e := &examined{Host: t.host, Upstream: t.upstream, known: true}
	if isLocal(t.host) {
		return e, nil
	}
	if before := d.asked[t.host]; before != nil {
		e.known = before.known
		return e, nil
	}
	d.asked[t.host] = e
	ctx, cancel := context.WithTimeout(ctx, doctorLimit)
	defer cancel()
	answers, err := d.names.Compare(ctx, t.host)
	if err != nil {
		return nil, fmt.Errorf("doctor: %s: %w", t.host, err)
	}
	e.known = false
	for _, a := range answers {
		e.known = e.known || a.Err == nil
		f := finding{Resolver: a.Server, Encrypted: a.Encrypted, System: a.System, Addrs: a.Addrs, TTL: a.TTL.Seconds(),
			Cold: millis(a.Cold), Warm: millis(a.Warm), Notes: a.Notes}
		if a.Err != nil {
			f.Error = a.Err.Error()
		}
		e.DNS = append(e.DNS, f)
	}
	return e, nil
}

// print writes for people.
func (d *doctor) print(e *examined, found []clientenv.Finding) error {
	if d.flags.json {
		return nil
	}
	if len(e.DNS) > 0 {
		if err := printFindings(d.out, e.Host, e.DNS); err != nil {
			return err
		}
	}
	if e.Reach != nil {
		if _, err := fmt.Fprintf(d.out, "way to %s: %s\n", e.Host, reachLine(e.Reach)); err != nil {
			return err
		}
	}
	if err := printFound(d.out, found); err != nil {
		return err
	}
	if e.TLS != nil {
		return printTLS(d.out, e.Upstream, e.TLS)
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func printFindings(out io.Writer, host string, list []finding) error {
	if _, err := fmt.Fprintf(out, "%s\n", host); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) // tells of an error in Flush
	fmt.Fprintln(w, "  resolver\tcold ms\twarm ms\tTTL\taddresses")
	for _, f := range list {
		name := f.Resolver
		if f.Encrypted {
			name += " (encrypted)"
		}
		if f.Error != "" {
			fmt.Fprintf(w, "  %s\t–\t–\t–\t%s\n", name, f.Error)
			continue
		}
		addrs := make([]string, len(f.Addrs))
		for i, a := range f.Addrs {
			addrs[i] = a.String()
		}
		fmt.Fprintf(w, "  %s\t%.1f\t%.1f\t%.0fs\t%s\n", name, f.Cold, f.Warm, f.TTL, strings.Join(addrs, " "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range list {
		for _, note := range f.Notes {
			if _, err := fmt.Fprintf(out, "  %s: %s\n", f.Resolver, note); err != nil {
				return err
			}
		}
	}
	return nil
}
