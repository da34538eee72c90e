// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/sidecar"
)

func execCommand(path *string) *cobra.Command {
	var all, none bool
	cmd := &cobra.Command{
		Use:   "exec -- CMD [ARG…]",
		Short: "Run CMD with its model calls going through a Warmwire of its own",
		Long: "exec starts a Warmwire on a free port, runs CMD with the proxy and base-URL variables set to it,\n" +
			"passes signals on, and ends with CMD's exit code.\n\n" +
			"Hosts of intercept.hosts, or with --intercept those of all https upstreams, are intercepted with an\n" +
			"authority of this run alone, which CMD is told to trust by the variables that clients know.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			switch {
			case none:
				cfg.Intercept.Hosts = nil
			case all:
				interceptUpstreams(cfg)
			}
			trust, err := newChildTrust(cmd.Context(), cfg, os.LookupEnv)
			if err != nil {
				return fmt.Errorf("exec: %w", err)
			}
			return errors.Join(runChild(cmd.Context(), cfg, trust, args), trust.remove())
		},
	}
	cmd.Flags().BoolVar(&all, "intercept", false, "intercept the hosts of all https upstreams, whatever intercept.hosts says")
	cmd.Flags().BoolVar(&none, "no-intercept", false, "intercept no host, whatever intercept.hosts says")
	cmd.MarkFlagsMutuallyExclusive("intercept", "no-intercept")
	cmd.Flags().SetInterspersed(false) // CMD's own flags are CMD's
	return cmd
}

// runChild runs the sidecar for the life of one child process.
func runChild(ctx context.Context, cfg *config.Config, trust childTrust, args []string) error {
	cfg.Listen.Addresses = []string{"127.0.0.1:0"}
	cfg.Admin.Address = ""
	cfg.Drain.Wait = 0 // the child is the only app, and it is gone then
	s, err := sidecar.New(cfg, sidecar.Options{Version: buildVersion(), LogTo: os.Stderr, Quiet: true, Authority: trust.authority})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	child := exec.Command(args[0], args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = childEnv(os.Environ(), "http://"+s.Addr(), cfg, trust.variables)
	if err := child.Start(); err != nil {
		cancel()
		return errors.Join(fmt.Errorf("exec: %w", err), <-done)
	}
	ended := make(chan struct{})
	go passSignals(child.Process, signals, ended)
	err = child.Wait()
	close(ended)
	cancel()
	return errors.Join(err, <-done)
}

// passSignals hands each signal to the child, unless it has got it already.
func passSignals(p *os.Process, signals <-chan os.Signal, ended <-chan struct{}) {
	for {
		select {
		case sig := <-signals:
			if !sentByTerminal(sig) {
				_ = p.Signal(sig) // a child that has just ended needs none
			}
		case <-ended:
			return
		}
	}
}

// childExitCode is the child's own code, or 128 + n for signal n as shells do.
func childExitCode(err *exec.ExitError) int {
	if st, ok := err.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return 128 + int(st.Signal())
	}
	return err.ExitCode()
}

// noProxy is what every client accepts: names and IPv4 literals. httpx crashes
// on a bare IPv6 address or a CIDR, so neither is in it.
const noProxy = "localhost,127.0.0.1"

// childEnv returns env with the variables that send model calls to base. The
// proxy variables are set in both spellings, since clients differ; curl reads
// http_proxy in lower case only. An existing NO_PROXY is kept.
func childEnv(env []string, base string, cfg *config.Config, trust map[string]string) []string {
	set := map[string]string{
		"HTTP_PROXY": base, "http_proxy": base, "HTTPS_PROXY": base, "https_proxy": base, "WARMWIRE_URL": base,
	}
	for _, u := range cfg.Upstreams {
		for name, suffix := range baseURLVariables[u.Name] {
			set[name] = base + "/" + u.Name + suffix
		}
	}
	maps.Copy(set, trust)
	kept := noProxy
	out := make([]string, 0, len(env)+len(set)+2)
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if strings.EqualFold(name, "NO_PROXY") {
			if value != "" && !strings.Contains(kept, value) {
				kept += "," + value
			}
			continue
		}
		if _, ours := set[name]; ours || strings.EqualFold(name, "ALL_PROXY") {
			continue // ALL_PROXY would compete with ours
		}
		out = append(out, kv)
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return append(out, "NO_PROXY="+kept, "no_proxy="+kept)
}

// baseURLVariables are those that the official SDKs read: variable to the path
// behind the upstream's name.
var baseURLVariables = map[string]map[string]string{
	"openai":     {"OPENAI_BASE_URL": "/v1", "OPENAI_API_BASE": "/v1"},
	"anthropic":  {"ANTHROPIC_BASE_URL": ""},
	"gemini":     {"GOOGLE_GEMINI_BASE_URL": "", "GEMINI_BASE_URL": ""},
	"mistral":    {"MISTRAL_BASE_URL": ""},
	"groq":       {"GROQ_BASE_URL": ""},
	"deepseek":   {"DEEPSEEK_BASE_URL": "", "DEEPSEEK_API_BASE": ""},
	"openrouter": {"OPENROUTER_BASE_URL": "/v1"},
	"xai":        {"XAI_BASE_URL": "/v1"},
	"ollama":     {"OLLAMA_API_BASE": ""},
}
