// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/mockapi"
	"github.com/warmwire/warmwire/internal/sidecar"
)

// demoRTT is the simulated round trip to the model API: the 80 ms at which the
// source study measured.
const demoRTT = 80 * time.Millisecond

// demoRounds is how often each call is timed; the table shows the median.
const demoRounds = 5

func demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Stream an answer from the built-in model API, then compare cold and direct with warm through Warmwire",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

// A demo is the model API, the slow path to it and a Warmwire, in one process.
type demo struct {
	out  io.Writer
	pool *x509.CertPool
	far  string // host:port of the API behind the slow path
	near string // base URL through Warmwire
}

func runDemo(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "warmwire-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	api, err := mockapi.New(mockapi.Config{})
	if err != nil {
		return err
	}
	if err := api.Listen(); err != nil {
		return err
	}
	path, err := newSlowPath(strings.TrimPrefix(api.TLSURL(), "https://"), demoRTT)
	if err != nil {
		return err
	}
	d := &demo{out: out, pool: api.CertPool(), far: strings.Replace(path.addr(), "127.0.0.1", "localhost", 1)}
	s, err := demoSidecar(dir, d.far, api.CAPEM())
	if err != nil {
		return err
	}
	d.near = "http://" + s.Addr() + "/openai"
	for _, run := range []func(context.Context) error{api.Run, path.run, s.Run} {
		running.Go(func() {
			if rerr := run(ctx); rerr != nil {
				fmt.Fprintln(out, "demo:", rerr)
			}
		})
	}
	return d.show(ctx)
}

// demoSidecar starts from a configuration as a user would write it.
func demoSidecar(dir, far string, ca []byte) (*sidecar.Sidecar, error) {
	caFile := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(caFile, ca, 0o600); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("listen: {address: 127.0.0.1:0}\nadmin: {address: none}\nstate_dir: %q\ndrain: {timeout: 1s}\n"+
		"upstreams:\n  openai: {url: 'https://%s', tls: {ca_file: %q}}\n", dir, far, caFile)
	cfg, _, err := config.Parse("demo", []byte(text), os.LookupEnv)
	if err != nil {
		return nil, err
	}
	return sidecar.New(cfg, sidecar.Options{Version: buildVersion(), LogTo: os.Stderr, Quiet: true})
}

// show prints the streamed answer and the table.
func (d *demo) show(ctx context.Context) error {
	fmt.Fprintf(d.out, "A model API (built in) answers through Warmwire, %v away:\n\n  ", demoRTT)
	if _, err := d.call(ctx, d.near, newDemoClient(nil), d.out); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n\nThe same call, median of %d, over a simulated round trip of %v:\n\n", demoRounds, demoRTT)
	var cold, warm []timings
	for range demoRounds { // alternating, so that a drift of the machine meets both
		c, err := d.call(ctx, "https://"+d.far, newDemoClient(d.pool), io.Discard) // a new client: nothing is warm
		if err != nil {
			return err
		}
		w, err := d.call(ctx, d.near, newDemoClient(nil), io.Discard) // a new app process would be as cold
		if err != nil {
			return err
		}
		cold, warm = append(cold, c), append(warm, w)
	}
	return printDemo(d.out, cold, warm)
}

func newDemoClient(pool *x509.CertPool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, DisableKeepAlives: pool == nil,
		DialContext: (&net.Dialer{}).DialContext,
	}}
}

// timings of one call, from its start.
type timings struct {
	connect, tls, token, total time.Duration
}

const demoQuestion = `{"model":"mock?tokens=24&gap=15ms&ttft=100ms","stream":true,"messages":[{"role":"user","content":"hello"}]}`

// call streams one chat completion and writes its text to show.
func (d *demo) call(ctx context.Context, base string, client *http.Client, show io.Writer) (timings, error) {
	defer client.CloseIdleConnections()
	var t timings
	start := time.Now()
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectDone:      func(_, _ string, _ error) { t.connect = time.Since(start) },
		TLSHandshakeDone: func(tls.ConnectionState, error) { t.tls = time.Since(start) },
	}), http.MethodPost, base+"/v1/chat/completions", bytes.NewBufferString(demoQuestion))
	if err != nil {
		return t, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return t, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return t, fmt.Errorf("the model API answered %s: %s", resp.Status, text)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		text := deltaText(lines.Bytes())
		if text != "" && t.token == 0 {
			t.token = time.Since(start)
		}
		if _, err := io.WriteString(show, text); err != nil {
			return t, err
		}
	}
	t.total = time.Since(start)
	return t, lines.Err()
}

// deltaText is the text in one line of a chat stream.
func deltaText(line []byte) string {
	data, ok := bytes.CutPrefix(line, []byte("data: "))
	if !ok {
		return ""
	}
	var chunk struct {
		Choices []struct {
			Delta struct{ Content string }
		}
	}
	if json.Unmarshal(data, &chunk) != nil || len(chunk.Choices) == 0 { // [DONE], usage
		return ""
	}
	return chunk.Choices[0].Delta.Content
}

func printDemo(out io.Writer, cold, warm []timings) error {
	median := func(all []timings, pick func(timings) time.Duration) time.Duration {
		ds := make([]time.Duration, len(all))
		for i, t := range all {
			ds[i] = pick(t)
		}
		sort.Slice(ds, func(i, j int) bool { return ds[i] < ds[j] })
		return ds[len(ds)/2].Round(100 * time.Microsecond)
	}
	w := tabwriter.NewWriter(out, 2, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tcold and direct\tthrough Warmwire\tsaved\t")
	for _, row := range []struct {
		name string
		pick func(timings) time.Duration
	}{
		{"connected after", func(t timings) time.Duration { return t.connect }},
		{"TLS ready after", func(t timings) time.Duration { return t.tls }},
		{"first token after", func(t timings) time.Duration { return t.token }},
		{"whole answer after", func(t timings) time.Duration { return t.total }},
	} {
		c, h := median(cold, row.pick), median(warm, row.pick)
		shown := h.String()
		if h == 0 {
			shown = "–" // an app talks to Warmwire without TLS
		}
		fmt.Fprintf(w, "%s\t%v\t%s\t%v\t\n", row.name, c, shown, (c - h).Round(time.Millisecond))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, "\nCold is what an app pays whose own connections have expired (SDK pools drop them after 4-5 s of silence).\n"+
		"Next: `warmwire run`, then point an app at it: README.md, \"Point an app at it\".")
	return err
}
