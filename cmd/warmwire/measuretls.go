// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmwire/warmwire/internal/measure"
	"github.com/warmwire/warmwire/tlspool/inspect"
)

// comparesTLS tells whether handshakes are measured instead of calls.
func (f *measureFlags) comparesTLS() bool {
	return f.tls == "compare" || strings.Contains(f.tls, "://")
}

// A handshakeRun is a comparison of handshakes that has been understood.
type handshakeRun struct {
	url      *url.URL
	cfg      inspect.Config
	n        int
	seed     uint64
	json     bool
	resolver *measure.Resolver
}

// compareTLS is `measure --tls URL`.
func (f *measureFlags) compareTLS(cmd *cobra.Command, address string) (err error) {
	r, err := f.resolveTLS(cmd, address)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if r.resolver != nil {
		defer func() { err = errors.Join(err, r.resolver.Close()) }()
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := r.reach(ctx); err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	bar := newProgress(os.Stderr)
	bar.total = r.n
	h, err := measure.CompareHandshakes(ctx, r.cfg, r.n, r.seed, bar.step)
	bar.clear()
	if err != nil {
		return err
	}
	if err := r.report(cmd.OutOrStdout(), h); err != nil {
		return err
	}
	if !h.Succeeded() {
		return errors.New("measure: no handshake succeeded; the reasons are counted above")
	}
	return nil
}

// resolveTLS turns the flags into a run.
func (f *measureFlags) resolveTLS(cmd *cobra.Command, address string) (*handshakeRun, error) {
	u, err := measure.ParseAddress(address)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "https" && u.Scheme != "wss" {
		return nil, fmt.Errorf("a TLS handshake needs an https address, this one is %s", u.Scheme)
	}
	var stray []string
	cmd.Flags().Visit(func(set *pflag.Flag) {
		if !slices.Contains([]string{"tls", "requests", "dns", "ca-file", "timeout", "seed", "json"}, set.Name) {
			stray = append(stray, "--"+set.Name)
		}
	})
	if len(stray) > 0 {
		return nil, fmt.Errorf("%s: for calls, and --tls compare sends none", strings.Join(stray, ", "))
	}
	m := &measurement{}
	m.cfg.Direct.URL = u
	for _, step := range []func(*measurement, *cobra.Command) error{f.ranges, f.credentials, f.lookups} {
		if err := step(m, cmd); err != nil {
			return nil, err
		}
	}
	r := &handshakeRun{url: u, n: f.Requests, seed: f.Seed, json: f.json}
	if len(m.resolvers) > 1 {
		return nil, errors.Join(errors.New("--dns: handshakes need one resolver"), measure.CloseResolvers(m.resolvers))
	}
	if len(m.resolvers) == 1 {
		r.resolver = m.resolvers[0]
	}
	r.cfg = inspect.Config{Host: u.Hostname(), Port: portOf(u), Roots: m.cfg.RootCAs}
	if cmd.Flags().Changed("timeout") {
		r.cfg.Timeout = f.Timeout
	}
	return r, nil
}

// reach looks the host up once: what is compared is one server.
func (r *handshakeRun) reach(ctx context.Context) error {
	lookup := func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	if r.resolver != nil {
		lookup = r.resolver.Lookup
	}
	addrs, err := lookup(ctx, r.cfg.Host)
	if err != nil {
		return err
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap()
	}
	r.cfg.Dial = (&stickyDialer{addrs: addrs, port: r.cfg.Port}).dial
	return nil
}

func (r *handshakeRun) report(out io.Writer, h *measure.Handshakes) error {
	address := "https://" + r.url.Host
	if r.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			URL        string              `json:"url"`
			Rounds     int                 `json:"rounds"`
			Handshakes *measure.Handshakes `json:"handshakes"`
		}{address, r.n, h})
	}
	if _, err := fmt.Fprintf(out, "%s, %d rounds of one handshake each, every one over a new connection; TLS alone, after TCP\n\n", address, r.n); err != nil {
		return err
	}
	return measure.WriteHandshakes(out, h)
}
