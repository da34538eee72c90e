// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/dnscache"
	"github.com/warmwire/warmwire/internal/sidecar"
)

// doctorLimit bounds the examination of one host.
const doctorLimit = 20 * time.Second

func doctorCommand(path *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [HOST...]",
		Short: "Ask every resolver for a host, and say how fast it is and in what it differs",
		Long: `Ask every resolver for a host, and say how fast it is and in what it differs.

Asked are the system's resolvers, those of dns.resolvers, and with none of them
listed the built-in encrypted ones, each twice: cold with its connection, and
again over the same one. Without HOST the upstreams of the configuration file are
asked for. The exit code is 1 if no resolver knows a host.`,
		RunE: func(cmd *cobra.Command, hosts []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			if len(hosts) == 0 {
				hosts = sidecar.KeptNames(cfg)
			}
			if len(hosts) == 0 {
				return fmt.Errorf("%w: doctor: name a host, as in `warmwire doctor api.openai.com`: the configuration has no upstream with one", errUsage)
			}
			cfg.DNS.CacheFile = "" // the running Warmwire's
			r, err := sidecar.Resolver(cfg, dnscache.Config{})
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }()
			return examine(cmd.Context(), cmd.OutOrStdout(), r, hosts, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
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

// examine asks for each host and prints what came of it.
func examine(ctx context.Context, out io.Writer, r *dnscache.Resolver, hosts []string, asJSON bool) error {
	all := map[string][]finding{}
	var unknown []string
	for _, host := range hosts {
		limited, cancel := context.WithTimeout(ctx, doctorLimit)
		answers, err := r.Compare(limited, host)
		cancel()
		if err != nil {
			return fmt.Errorf("doctor: %s: %w", host, err)
		}
		known := false
		for _, a := range answers {
			known = known || a.Err == nil
			f := finding{Resolver: a.Server, Encrypted: a.Encrypted, System: a.System, Addrs: a.Addrs, TTL: a.TTL.Seconds(),
				Cold: millis(a.Cold), Warm: millis(a.Warm), Notes: a.Notes}
			if a.Err != nil {
				f.Error = a.Err.Error()
			}
			all[host] = append(all[host], f)
		}
		if !known {
			unknown = append(unknown, host)
		}
		if !asJSON {
			if err := printFindings(out, host, all[host]); err != nil {
				return err
			}
		}
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(all); err != nil {
			return err
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("doctor: no resolver has an address of %s", strings.Join(unknown, ", "))
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
