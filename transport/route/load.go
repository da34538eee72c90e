// SPDX-License-Identifier: Apache-2.0

package route

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// Bounds of what is read from an endpoint about itself.
const (
	maxPage  = 4 << 20  // bytes; a page of vLLM has about 60 kB
	maxLine  = 64 << 10 // bytes; longer lines are passed over
	maxProbe = 64 << 10 // bytes of a probe's answer
	badProbe = 2        // failed probes in a row leave an endpoint out
)

// Run reads what endpoints say of themselves, and probes them, until ctx ends; it then
// returns nil and leaves nothing behind. Call it once. Without LoadPath and ProbePath it
// only waits.
func (t *Transport) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		t.mu.Lock()
		changed, cfg, list := t.changed, t.cfg, t.endpoints
		t.mu.Unlock()
		ctx, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		for _, e := range list {
			if cfg.LoadPath != "" {
				running.Go(func() { t.watchLoad(ctx, e, cfg) })
			}
			if cfg.ProbePath != "" {
				running.Go(func() { t.probe(ctx, e, cfg) })
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
		stop()
		running.Wait()
	}
	return nil
}

// every calls do now and then every d.
func every(ctx context.Context, d time.Duration, do func(context.Context)) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		do(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watchLoad reads the page of e again and again.
func (t *Transport) watchLoad(ctx context.Context, e *endpoint, cfg Config) {
	every(ctx, cfg.LoadInterval, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, cfg.ProbeTimeout)
		defer cancel()
		var l Load
		err := t.ask(ctx, e, cfg.LoadPath, maxPage, func(r io.Reader) (err error) {
			l, err = ReadLoad(r)
			return err
		})
		if err != nil { // what is known grows old
			return
		}
		t.mu.Lock()
		e.report.observe(l.Waiting, l.Cache, time.Now())
		t.mu.Unlock()
	})
}

// probe asks e whether it lives: failures leave it out, as long as they last.
func (t *Transport) probe(ctx context.Context, e *endpoint, cfg Config) {
	every(ctx, cfg.ProbeEvery, func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, cfg.ProbeTimeout)
		defer cancel()
		err := t.ask(limited, e, cfg.ProbePath, maxProbe, func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		})
		if ctx.Err() == nil {
			t.probed(e, err == nil)
		}
	})
}

// probed takes the result of a probe.
func (t *Transport) probed(e *endpoint, well bool) {
	t.mu.Lock()
	now := time.Now()
	var ev event
	told := false
	switch {
	case well && e.probing >= badProbe && e.reason == Probe && e.out(now):
		e.until = now // it was out for its probes alone; its full weight comes slowly
		e.probing = 0
	case well:
		e.probing = 0
	default:
		e.probing++
		if e.probing < badProbe || t.cfg.Eject.After < 0 {
			break
		}
		if e.out(now) { // until the next probe has its say
			if next := now.Add(t.cfg.ProbeEvery + t.cfg.ProbeTimeout); next.After(e.until) {
				e.until = next
			}
			break
		}
		ev, told = t.ejectLocked(e, Probe, now), true
	}
	tell := t.cfg.OnEject
	t.mu.Unlock()
	if told {
		tell(ev.name, ev.why, ev.capped)
	}
}

// ask sends a GET of ours to e; only an answer of 2xx is good.
func (t *Transport) ask(ctx context.Context, e *endpoint, path string, most int64, read func(io.Reader) error) error {
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return err
	}
	u.Scheme, u.Host = e.scheme, e.host
	req := (&http.Request{Method: http.MethodGet, URL: u, Host: e.host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Accept": {"text/plain"}, "Accept-Encoding": {"identity"}, "User-Agent": {"warmwire"}}}).WithContext(ctx)
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return read(io.LimitReader(resp.Body, most))
}

// A Load is what a model server says of itself.
type Load struct {
	Waiting float64 // requests in its queue, of all models and engines
	Cache   float64 // share of its key-value cache in use, of the fullest engine
}

// ErrNoLoad says that a page has none of the known families.
var ErrNoLoad = errors.New("route: the page says nothing of load that is known")

// waitingName and cacheNames are vLLM's; the second of them is that of its version 0
// and early version 1.
var (
	waitingName = []byte("vllm:num_requests_waiting")
	cacheNames  = [][]byte{[]byte("vllm:kv_cache_usage_perc"), []byte("vllm:gpu_cache_usage_perc")}
)

// ReadLoad reads Prometheus text (or OpenMetrics), and of it only the lines that it
// knows: samples of gauges, summed over their labels or the greatest of them.
func ReadLoad(r io.Reader) (Load, error) {
	var l Load
	known := false
	in := bufio.NewReaderSize(r, 4<<10)
	for {
		line, err := readLine(in)
		name, v, ok := sample(line)
		switch {
		case !ok:
		case bytes.Equal(name, waitingName):
			l.Waiting += max(v, 0)
			known = true
		case bytes.Equal(name, cacheNames[0]), bytes.Equal(name, cacheNames[1]):
			l.Cache = max(l.Cache, min(v, 1))
			known = true
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Load{}, err
		}
	}
	if !known || math.IsInf(l.Waiting, 0) {
		return Load{}, ErrNoLoad
	}
	return l, nil
}

// readLine returns the next line, nothing for one that is too long.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = in.ReadSlice('\n')
		if len(long) < maxLine {
			long = append(long, line...)
		}
	}
	if len(long) > maxLine {
		return nil, err
	}
	return long, err
}

// sample reads `name{labels} value [timestamp]`.
func sample(line []byte) (name []byte, v float64, ok bool) {
	line = bytes.TrimSpace(line)
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 || line[0] == '#' {
		return nil, 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		if rest = afterLabels(rest); rest == nil {
			return nil, 0, false
		}
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return nil, 0, false
	}
	v, err := strconv.ParseFloat(string(fields[0]), 64)
	return name, v, err == nil && !math.IsNaN(v)
}

// afterLabels is what stands behind the closing brace: one in a quoted value is none.
func afterLabels(b []byte) []byte {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++
		case b[i] == '"':
			quoted = !quoted
		case b[i] == '}' && !quoted:
			return b[i+1:]
		}
	}
	return nil
}
