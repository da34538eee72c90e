// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/warmwire/warmwire/transport/hints"
)

// A Signal is a kind of telemetry.
type Signal string

// The signals that are exported.
const (
	Traces  Signal = "traces"
	Metrics Signal = "metrics"
)

const (
	defaultTimeout = 10 * time.Second // OTEL_EXPORTER_OTLP_TIMEOUT
	maxAnswer      = 64 << 10         // more than a collector has to say
)

// Config is where messages go.
type Config struct {
	Endpoint *url.URL // without /v1/traces and its like
	Header   http.Header
	Encoding Encoding
	Timeout  time.Duration // of one attempt; 0 means 10 s
}

// A Target is a collector.
type Target struct {
	out http.RoundTripper
	cfg Config
}

// New returns a Target that is reached by out.
func New(out http.RoundTripper, cfg Config) (*Target, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Endpoint == nil || cfg.Endpoint.Host == "" || cfg.Endpoint.User != nil || cfg.Timeout < 0 {
		return nil, errors.New("otlp: the endpoint is no http:// or https:// URL of a host, or the timeout is negative")
	}
	return &Target{out: out, cfg: cfg}, nil
}

// Encoding is how messages to it are written.
func (t *Target) Encoding() Encoding { return t.cfg.Encoding }

// A Result is what became of a message.
type Result struct {
	Rejected int64 // of its spans or points, while the rest was taken
	Err      error // nil = it was taken; it holds nothing of what was sent or answered but the status
	Retry    bool  // after an error: the same message may be sent again
	// After is how long the collector wants to be left alone; 0 = it did not say.
	After time.Duration
}

// Send sends one message of a signal. It may be sent again after errors of the network
// and the answers 429, 502, 503 and 504 (OTLP §Failures).
func (t *Target) Send(ctx context.Context, signal Signal, message []byte) Result {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	body, err := compress(message)
	if err != nil {
		return Result{Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.address(signal), bytes.NewReader(body))
	if err != nil {
		return Result{Err: err}
	}
	for name, values := range t.cfg.Header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", t.cfg.Encoding.contentType())
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("User-Agent", "warmwire")
	resp, err := t.out.RoundTrip(req)
	if err != nil {
		return Result{Err: fmt.Errorf("otlp: %w", err), Retry: true}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		answer = nil // the status says enough: what was taken must not be sent twice
	}
	return t.judge(resp, answer)
}

// judge reads an answer.
func (t *Target) judge(resp *http.Response, answer []byte) Result {
	switch resp.StatusCode {
	case http.StatusOK:
		rejected, err := rejectedOf(resp.Header.Get("Content-Type"), answer)
		if err != nil { // it was taken all the same
			rejected = 0
		}
		return Result{Rejected: rejected}
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		after, _ := hints.Asked(resp.StatusCode, resp.Header, time.Now())
		return Result{Err: statusError(resp.StatusCode), Retry: true, After: max(after, 0)}
	}
	return Result{Err: statusError(resp.StatusCode)}
}

type statusError int

func (e statusError) Error() string { return "otlp: the collector answered " + strconv.Itoa(int(e)) }

// address is the endpoint's path with that of the signal behind it (OTLP exporter §Endpoint
// URLs for OTLP/HTTP).
func (t *Target) address(signal Signal) string {
	u := *t.cfg.Endpoint
	u.Path = strings.TrimRight(u.Path, "/") + "/v1/" + string(signal)
	u.RawPath = ""
	return u.String()
}

func compress(message []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	if _, err := w.Write(message); err != nil {
		return nil, fmt.Errorf("otlp: compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("otlp: compress: %w", err)
	}
	return b.Bytes(), nil
}
