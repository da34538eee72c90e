// SPDX-License-Identifier: Apache-2.0

// Package accesslog writes a sampled line for finished requests, off their way:
// [Log.Record] never blocks, and a full queue drops records and counts them.
//
// It refuses to hold anything that could carry a secret: a record has no path,
// header or body. Requests that failed, were cut or ended oddly are always
// written; of the others a share, chosen by the record's id, so that the choice
// can be repeated.
//
// Nothing is written before [Log.Run] is called; it drains the queue and returns
// when its context ends. All methods are safe for concurrent use.
package accesslog

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"
)

// Config is plain data. The zero value samples nothing.
type Config struct {
	Sample   float64 // share of successful requests, 0 to 1
	Capacity int     // records that may wait; 0 = 4096
}

// A Record is one finished request.
type Record struct {
	ID                                  uint64
	Start                               time.Time
	Duration                            time.Duration
	Upstream, Mode                      string
	AppProto, UpstreamProto, Method     string
	Status                              int
	Outcome, Cause                      string
	BytesIn, BytesOut                   int64
	DNS, Connect, TLS, Send, Wait, TTFT time.Duration
	Chunks                              int
	InputTokens, OutputTokens           int64 // -1 = unknown
	AppRetries                          int
	TraceID                             string
}

// A Log takes records.
type Log struct {
	handler slog.Handler
	queue   chan Record
	limit   atomic.Uint64 // a hash up to this is sampled
	dropped atomic.Uint64
}

// New returns a Log that writes to h once Run is called.
func New(h slog.Handler, cfg Config) (*Log, error) {
	if !(cfg.Sample >= 0 && cfg.Sample <= 1) {
		return nil, fmt.Errorf("accesslog: sample %v is outside 0 to 1", cfg.Sample)
	}
	if cfg.Capacity <= 0 {
		cfg.Capacity = 4096
	}
	l := &Log{handler: h, queue: make(chan Record, cfg.Capacity)}
	l.SetSample(cfg.Sample)
	return l, nil
}

// SetSample changes the share; values outside 0 to 1 are brought inside.
func (l *Log) SetSample(share float64) {
	share = min(max(share, 0), 1)
	if share == 1 {
		l.limit.Store(math.MaxUint64)
		return
	}
	l.limit.Store(uint64(share * (1 << 63) * 2))
}

// Dropped is how many records found the queue full.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Record queues r if it is to be written. It never blocks.
func (l *Log) Record(r Record) {
	if r.Outcome == "ok" && r.Cause == "" {
		if limit := l.limit.Load(); limit == 0 || hash(r.ID) > limit {
			return
		}
	}
	select {
	case l.queue <- r:
	default:
		l.dropped.Add(1)
	}
}

// hash spreads consecutive ids (the finalizer of SplitMix64).
func hash(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Run writes records until ctx ends, then those that wait still, and returns nil.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case r := <-l.queue:
			l.write(r)
		case <-ctx.Done():
			for {
				select {
				case r := <-l.queue:
					l.write(r)
				default:
					return nil
				}
			}
		}
	}
}

func (l *Log) write(r Record) {
	level := slog.LevelInfo
	if r.Outcome != "ok" {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !l.handler.Enabled(ctx, level) {
		return
	}
	rec := slog.NewRecord(r.Start.Add(r.Duration), level, "request", 0)
	rec.AddAttrs(slog.Uint64("id", r.ID), slog.String("upstream", r.Upstream), slog.String("mode", r.Mode), slog.String("method", method(r.Method)),
		slog.Int("status", r.Status), slog.String("outcome", r.Outcome), slog.Duration("duration", r.Duration),
		slog.String("app_proto", r.AppProto), slog.Int64("bytes_in", r.BytesIn), slog.Int64("bytes_out", r.BytesOut))
	text := func(name, v string) {
		if v != "" {
			rec.AddAttrs(slog.String(name, v))
		}
	}
	span := func(name string, d time.Duration) {
		if d > 0 {
			rec.AddAttrs(slog.Duration(name, d))
		}
	}
	text("cause", r.Cause)
	text("upstream_proto", r.UpstreamProto)
	text("trace_id", r.TraceID)
	for _, p := range [...]struct {
		name string
		d    time.Duration
	}{{"dns", r.DNS}, {"connect", r.Connect}, {"tls", r.TLS}, {"send", r.Send}, {"wait", r.Wait}, {"ttft", r.TTFT}} {
		span(p.name, p.d)
	}
	if r.Chunks > 0 {
		rec.AddAttrs(slog.Int("chunks", r.Chunks))
	}
	if r.OutputTokens >= 0 {
		rec.AddAttrs(slog.Int64("input_tokens", max(r.InputTokens, 0)), slog.Int64("output_tokens", r.OutputTokens))
	}
	if r.AppRetries > 0 {
		rec.AddAttrs(slog.Int("app_retries", r.AppRetries))
	}
	_ = l.handler.Handle(ctx, rec) // a log that cannot be written must not stop traffic
}

// method keeps what an app made up out of the log.
func method(m string) string {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
		return m
	}
	return "OTHER"
}
