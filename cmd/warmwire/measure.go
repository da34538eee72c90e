// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/measure"
)

// measureFlags is what the command line says.
type measureFlags struct {
	measure.Config

	api, through, dns, tls, keyEnv, caFile, goodput, plot string
	gridContext, gridOutput                               string
	headers                                               []string
	json, fit                                             bool
}

func measureCommand() *cobra.Command {
	var f measureFlags
	cmd := &cobra.Command{
		Use:   "measure URL",
		Short: "Measure time to first token and more of a model API, direct and through Warmwire",
		Long: `Sends streamed model calls to URL and shows how long their parts took and how they ended.
With --through the calls take turns between URL itself and the way through Warmwire.
The calls are real ones: an API that charges for tokens charges for these.`,
		Example: `  warmwire measure https://api.openai.com/v1/chat/completions --key-env OPENAI_API_KEY --model gpt-5-mini \
    --through http://127.0.0.1:8484/openai
  warmwire measure --tls https://api.openai.com     # handshakes only: no call is sent`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.comparesTLS() && strings.Contains(f.tls, "://") { // --tls URL
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.comparesTLS() {
				return f.compareTLS(cmd, append(args, f.tls)[0])
			}
			m, err := f.resolve(cmd, args[0])
			if err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return m.run(ctx, cmd.OutOrStdout(), os.Stderr)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *measureFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.api, "api", "auto", "`protocol`: auto (by path), chat, responses, anthropic, gemini or realtime")
	fl.StringVar(&f.through, "through", "", "Warmwire's `URL`; calls alternate between direct and through it")
	fl.StringVar(&f.Model, "model", "", "`name` of the model")
	fl.StringVar(&f.Prompt, "prompt", "", "`text` to send in every call, instead of --prompt-tokens")
	fl.IntVar(&f.PromptTokens, "prompt-tokens", 16, "length of generated prompts, about this many tokens, another one for each call")
	fl.IntVar(&f.OutputTokens, "output-tokens", 0, "most tokens of an answer; 0 leaves it to the server")
	fl.IntVarP(&f.Requests, "requests", "n", 20, "calls of each way; with --fit, of each pair of lengths (default then: 3)")
	fl.IntVar(&f.Concurrency, "concurrency", 1, "calls at a time")
	fl.Float64Var(&f.Rate, "rate", 0, "arrivals a `second` (Poisson, over both ways), however slow the answers, instead of --concurrency")
	fl.IntVar(&f.MaxInFlight, "max-in-flight", 1000, "with --rate, calls under way at most; those due beyond are counted as not sent")
	fl.Uint64Var(&f.Seed, "seed", 0, "of arrivals, prompts and intervals; 0 takes another one each time and shows it")
	fl.DurationVar(&f.Timeout, "timeout", 10*time.Minute, "limit of one call")
	fl.StringArrayVar(&f.headers, "header", nil, "header `field` \"Name: value\" for every call; may be repeated; never shown")
	fl.StringVar(&f.keyEnv, "key-env", "", "`name` of the environment variable that holds the API key")
	fl.StringVar(&f.caFile, "ca-file", "", "PEM `file` of authorities to trust beside the system's")
	fl.StringVar(&f.dns, "dns", "system", "`resolvers` to compare, with commas between them; direct calls use the first: "+
		strings.Join(measure.ResolverNames(), ", ")+", https://…, tls://…, udp://… or tcp://…")
	fl.StringVar(&f.tls, "tls", "", "a new connection for every call, with a `handshake` that is full or resumed; compare, or a URL, times full beside resumed handshakes instead of calls; default: connections are kept")
	fl.StringVar(&f.goodput, "goodput", "", "`limits` that a good call meets, as in ttft=500ms,tpot=50ms,e2el=10s")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	fl.StringVar(&f.plot, "plot", "", "draw the distributions into this SVG `file`")
	fl.BoolVar(&f.fit, "fit", false, "fit the latency curve over a grid of context and output lengths")
	fl.StringVar(&f.gridContext, "grid-context", "64,256,1024,4096", "context `lengths` of --fit in tokens")
	fl.StringVar(&f.gridOutput, "grid-output", "16,64,256", "output `lengths` of --fit in tokens")
}

// A measurement is a command line that has been understood.
type measurement struct {
	cfg    measure.Config
	limits measure.Limits
	cells  []measure.Cell // of --fit, else nil
	plot   string
	json   bool

	host      string // of direct calls, with --dns
	resolvers []*measure.Resolver
	lookups   *measure.Lookups // once they are compared
}

// resolve turns the flags into a measurement.
func (f *measureFlags) resolve(cmd *cobra.Command, address string) (*measurement, error) {
	m := &measurement{cfg: f.Config, plot: f.plot, json: f.json}
	u, err := measure.ParseAddress(address)
	if err != nil {
		return nil, err
	}
	m.cfg.API = measure.DetectAPI(u.Path)
	if f.api != "auto" {
		if m.cfg.API, err = measure.ParseAPI(f.api); err != nil {
			return nil, err
		}
	} else if m.cfg.API == "" {
		return nil, fmt.Errorf("the path %s is no API's that is known: say which with --api", u.EscapedPath())
	}
	if cmd.Flags().Changed("tls") && f.tls == "" {
		return nil, errors.New("--tls: want full or resumed")
	}
	m.cfg.TLS = measure.TLSMode(f.tls)
	if m.cfg.Direct = (measure.Target{URL: u}); f.through != "" {
		via, err := measure.ParseAddress(f.through)
		if err != nil {
			return nil, fmt.Errorf("--through: %w", err)
		}
		through := measure.ThroughTarget(m.cfg.Direct, via)
		m.cfg.Through = &through
	}
	if m.cfg.Seed == 0 {
		m.cfg.Seed = uint64(time.Now().UnixNano()) >> 10 // short enough for any JSON reader
	}
	if f.goodput != "" {
		if m.limits, err = measure.ParseLimits(f.goodput); err != nil {
			return nil, fmt.Errorf("--goodput: %w", err)
		}
	}
	for _, step := range []func(*measurement, *cobra.Command) error{f.ranges, f.credentials, f.grid} {
		if err := step(m, cmd); err != nil {
			return nil, err
		}
	}
	if err := m.cfg.Validate(); err != nil {
		return nil, err
	}
	return m, f.lookups(m, cmd)
}

// lookups opens the resolvers that --dns names.
func (f *measureFlags) lookups(m *measurement, cmd *cobra.Command) (err error) {
	if !cmd.Flags().Changed("dns") {
		return nil
	}
	m.host = m.cfg.Direct.URL.Hostname()
	if _, err := netip.ParseAddr(m.host); err == nil {
		return fmt.Errorf("--dns: %s is an address: there is no name to look up", m.host)
	}
	if m.resolvers, err = measure.ParseResolvers(f.dns, m.cfg.RootCAs); err != nil {
		return fmt.Errorf("--dns: %w", err)
	}
	m.cfg.Resolver = m.resolvers[0]
	return nil
}

// ranges refuses zeros that would silently become defaults, and flags that
// contradict each other.
func (f *measureFlags) ranges(_ *measurement, cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	for name, ok := range map[string]bool{
		"requests": f.Requests > 0, "concurrency": f.Concurrency > 0, "max-in-flight": f.MaxInFlight > 0,
		"prompt-tokens": f.PromptTokens > 0, "timeout": f.Timeout > 0, "rate": f.Rate > 0,
	} {
		if set(name) && !ok {
			return fmt.Errorf("--%s must be above zero", name)
		}
	}
	for _, pair := range [][2]string{{"rate", "concurrency"}, {"prompt", "prompt-tokens"}} {
		if set(pair[0]) && set(pair[1]) {
			return fmt.Errorf("--%s and --%s exclude each other", pair[0], pair[1])
		}
	}
	if set("max-in-flight") && !set("rate") {
		return errors.New("--max-in-flight needs --rate")
	}
	return nil
}

// credentials sets what both ways send and trust.
func (f *measureFlags) credentials(m *measurement, _ *cobra.Command) error {
	h := http.Header{}
	if m.cfg.API == measure.Anthropic {
		h.Set("Anthropic-Version", "2023-06-01") // required; --header may say another
	}
	if f.keyEnv != "" {
		key := os.Getenv(f.keyEnv)
		if key == "" {
			return fmt.Errorf("--key-env: the environment variable %s is not set", f.keyEnv)
		}
		m.cfg.API.SetKey(h, key)
	}
	given := http.Header{}
	for _, field := range f.headers {
		name, value, err := measure.ParseHeader(field)
		if err != nil {
			return fmt.Errorf("--header: %w", err)
		}
		given.Add(name, value)
	}
	for name, values := range given {
		h[name] = values
	}
	m.cfg.Direct.Header = h
	if m.cfg.Through != nil {
		m.cfg.Through.Header = h
	}
	if f.caFile == "" {
		return nil
	}
	pem, err := os.ReadFile(f.caFile)
	if err != nil {
		return fmt.Errorf("--ca-file: %w", err)
	}
	if m.cfg.RootCAs, err = measure.LoadRoots(pem); err != nil {
		return fmt.Errorf("--ca-file %s: %w", f.caFile, err)
	}
	return nil
}

func (f *measureFlags) grid(m *measurement, cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	if !f.fit {
		if set("grid-context") || set("grid-output") {
			return errors.New("--grid-context and --grid-output need --fit")
		}
		return nil
	}
	for _, name := range []string{"through", "rate", "concurrency", "prompt", "prompt-tokens", "output-tokens", "tls"} {
		if set(name) {
			return fmt.Errorf("--fit and --%s exclude each other: the grid says what is sent, one call after another", name)
		}
	}
	contexts, err := measure.ParseLengths(f.gridContext)
	if err != nil {
		return fmt.Errorf("--grid-context: %w", err)
	}
	outputs, err := measure.ParseLengths(f.gridOutput)
	if err != nil {
		return fmt.Errorf("--grid-output: %w", err)
	}
	repeat := 3
	if set("requests") {
		repeat = f.Requests
	}
	m.cells, err = measure.Grid(contexts, outputs, repeat, m.cfg.Seed)
	return err
}

// run measures and reports.
func (m *measurement) run(ctx context.Context, out io.Writer, errOut *os.File) (err error) {
	defer func() { err = errors.Join(err, measure.CloseResolvers(m.resolvers)) }()
	var plot *os.File
	if m.plot != "" { // before the calls: they would be lost with a bad path
		if plot, err = os.OpenFile(m.plot, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
		defer func() { err = errors.Join(err, plot.Close()) }()
	}
	legs := 1
	if m.cfg.Through != nil {
		legs = 2
	}
	summary := measure.NewSummary(legs, m.limits, m.cfg.Seed)
	var points []measure.Point
	bar := newProgress(errOut)
	if m.resolvers != nil {
		bar.total = m.cfg.WithDefaults().Requests
		m.lookups = measure.CompareLookups(ctx, m.host, m.resolvers, bar.total, bar.step)
		bar.clear()
		bar = newProgress(errOut)
	}
	runner, err := measure.New(m.cfg, func(r measure.Result) {
		summary.Add(r)
		if m.cells != nil {
			if p, ok := measure.PointOf(r, m.cells[r.Number]); ok {
				points = append(points, p)
			}
		}
		bar.step()
	})
	if err != nil {
		return err
	}
	if m.cells != nil {
		bar.total = len(m.cells)
		summary.Elapsed = runner.RunGrid(ctx, m.cells)
	} else {
		bar.total = runner.Total()
		summary.Elapsed = runner.Run(ctx)
	}
	bar.clear()
	return m.report(out, plot, summary, points)
}

// report prints what was measured and fails if no call succeeded.
func (m *measurement) report(out io.Writer, plot *os.File, s *measure.Summary, points []measure.Point) error {
	_, succeeded := s.Calls()
	var fit *measure.Fit
	var fitErr error
	if m.cells != nil {
		fit, fitErr = measure.FitCurve(points, m.cfg.Seed)
	}
	var err error
	if m.json {
		err = m.writeJSON(out, s, fit, fitErr)
	} else {
		err = m.writeText(out, s, fit)
	}
	if err != nil {
		return err
	}
	if succeeded == 0 {
		return errors.New("measure: no call succeeded; the reasons are counted above")
	}
	if plot != nil {
		if err := errors.Join(plot.Truncate(0), measure.WriteSVG(plot, s)); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	if fitErr != nil {
		return fmt.Errorf("measure: %w", fitErr)
	}
	return nil
}

func (m *measurement) writeJSON(out io.Writer, s *measure.Summary, fit *measure.Fit, fitErr error) error {
	report := struct {
		URL      string           `json:"url"`
		Through  string           `json:"through,omitempty"`
		API      measure.API      `json:"api"`
		Seed     uint64           `json:"seed"`
		Lookups  *measure.Lookups `json:"lookups,omitempty"`
		Summary  *measure.Summary `json:"summary"`
		Fit      *measure.Fit     `json:"fit,omitempty"`
		FitError string           `json:"fit_error,omitempty"`
	}{URL: measure.ShowAddress(m.cfg.Direct.URL), API: m.cfg.API, Seed: m.cfg.Seed, Lookups: m.lookups, Summary: s, Fit: fit}
	if m.cfg.Through != nil {
		report.Through = measure.ShowAddress(m.cfg.Through.URL)
	}
	if fitErr != nil {
		report.FitError = fitErr.Error()
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(report)
}

func (m *measurement) writeText(out io.Writer, s *measure.Summary, fit *measure.Fit) error {
	var b strings.Builder
	fmt.Fprintf(&b, "direct   %s\n", measure.ShowAddress(m.cfg.Direct.URL))
	if m.cfg.Through != nil {
		fmt.Fprintf(&b, "through  %s\n", measure.ShowAddress(m.cfg.Through.URL))
	}
	how := fmt.Sprintf("concurrency %d", m.cfg.WithDefaults().Concurrency)
	switch {
	case m.cells != nil:
		how = fmt.Sprintf("grid of %d calls", len(m.cells))
	case m.cfg.Rate > 0:
		how = fmt.Sprintf("%g arrivals a second", m.cfg.Rate)
	}
	connections := "kept"
	if m.cfg.TLS != measure.TLSReuse {
		connections = "new for every call, handshake " + string(m.cfg.TLS)
	}
	fmt.Fprintf(&b, "%s, %s, connections %s, seed %d, took %v\n\n", m.cfg.API, how, connections, m.cfg.Seed, s.Elapsed.Round(time.Millisecond))
	if _, err := io.WriteString(out, b.String()); err != nil {
		return err
	}
	if m.lookups != nil {
		if err := measure.WriteLookups(out, m.lookups); err != nil {
			return err
		}
	}
	if err := measure.WriteTable(out, s); err != nil || fit == nil {
		return err
	}
	return writeFit(out, fit)
}

func writeFit(out io.Writer, f *measure.Fit) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\na·(1 + b·C^0.3)·(G + c·G^1.2)·(1 − exp(−d·C)), milliseconds, %d calls, %d contexts, %d outputs\n\n", f.Points, f.Contexts, f.Outputs)
	fmt.Fprintln(w, "\tvalue\t95 % interval\t")
	for _, p := range f.Parameters {
		verdict := ""
		if !p.Supported {
			verdict = "not supported by the data: " + p.Why
		}
		fmt.Fprintf(w, "%s\t%.4g\t%.4g – %.4g\t%s\n", p.Name, p.Value, p.Interval.Low, p.Interval.High, verdict)
	}
	fmt.Fprintf(w, "\nrelative error %.2g %%, condition %.2g\n", 100*f.Error, f.Condition)
	if !f.Settled {
		fmt.Fprintln(w, "the search did not come to rest: trust none of the values")
	}
	if !f.Supported() {
		fmt.Fprintln(w, "least determined: "+f.Weakest+"; a wider grid or more calls of each pair help")
	}
	return w.Flush()
}

// progressAfter is how long a run is before a bar is worth a line.
const progressAfter = 2 * time.Second

// A progress draws a bar on a terminal, and nothing elsewhere.
type progress struct {
	out   *os.File // nil if it is no terminal
	start time.Time
	drawn time.Time
	total int
	done  int
}

func newProgress(out *os.File) *progress {
	p := &progress{start: time.Now()}
	if info, err := out.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" {
		p.out = out
	}
	return p
}

func (p *progress) step() {
	p.done++
	now := time.Now()
	if p.out == nil || now.Sub(p.start) < progressAfter || now.Sub(p.drawn) < 100*time.Millisecond {
		return
	}
	p.drawn = now
	const width = 30
	full := width * p.done / max(p.total, 1)
	left := time.Duration(float64(now.Sub(p.start)) / float64(p.done) * float64(p.total-p.done))
	fmt.Fprintf(p.out, "\r[%s%s] %d/%d calls, about %v left \x1b[K", strings.Repeat("#", full), strings.Repeat(".", width-full), p.done, p.total, left.Round(time.Second))
}

func (p *progress) clear() {
	if !p.drawn.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
