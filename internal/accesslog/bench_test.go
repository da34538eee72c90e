// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/accesslog"
)

// stream is a record of a streamed answer that went well, which most are.
func stream() accesslog.Record {
	r := full
	r.Time, r.Outcome, r.Cause, r.Attempts, r.Resumes, r.AppRetries = time.Now(), "ok", "", 0, 0, 0
	return r
}

// BenchmarkWrite is all that one record costs, from Record to the write, on one
// core: by whoever records, and by the writer. "slog" is what the standard
// library's handlers take for the same bytes, as this package used them before it
// had encoders of its own: the making of its attributes, and the write.
func BenchmarkWrite(b *testing.B) {
	rec := stream()
	for _, f := range []struct {
		name   string
		format accesslog.Format
		slog   slog.Handler
	}{
		{"json", accesslog.JSON, slog.NewJSONHandler(io.Discard, nil)},
		{"text", accesslog.Text, slog.NewTextHandler(io.Discard, nil)},
		{"msgpack", accesslog.MessagePack, nil},
	} {
		b.Run(f.name+"/warmwire", func(b *testing.B) {
			b.ReportAllocs()
			bytes := 0
			out := writerFunc(func(p []byte) (int, error) { bytes += len(p); return len(p), nil })
			l, err := accesslog.New(out, nil, accesslog.Config{Sample: 1, Format: f.format})
			if err != nil {
				b.Fatal(err)
			}
			writeOut, n := l.Writer(), 0
			for b.Loop() {
				rec.ID++
				l.Record(rec)
				if n++; n%64 == 0 { // the writer's turn
					writeOut()
				}
			}
			writeOut()
			if l.Dropped() > 0 {
				b.Errorf("dropped %d", l.Dropped())
			}
			b.ReportMetric(float64(bytes)/float64(n), "bytes/op")
		})
		if f.slog == nil {
			continue
		}
		b.Run(f.name+"/slog", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rec.ID++
				if err := viaSlog(f.slog, &rec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRecord is what a request pays, with a writer that runs beside it.
func BenchmarkRecord(b *testing.B) {
	for _, bb := range []struct {
		name   string
		sample float64
	}{{"in full", 1}, {"counted only", 0}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			l, err := accesslog.New(io.Discard, nil, accesslog.Config{Sample: bb.sample, Format: accesslog.JSON, Summary: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			go func() { ended <- l.Run(ctx) }()
			rec := stream()
			n := 0
			for b.Loop() {
				rec.ID++
				l.Record(rec)
				if n++; n%2048 == 0 && bb.sample > 0 { // the writer's turn
					b.StopTimer()
					for l.Queued() > 0 {
						runtime.Gosched()
					}
					b.StartTimer()
				}
			}
			cancel()
			if err := <-ended; err != nil || l.Dropped() > 0 {
				b.Errorf("Run = %v, dropped %d", err, l.Dropped())
			}
		})
	}
}
