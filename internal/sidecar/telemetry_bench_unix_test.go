// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sidecar_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// BenchmarkTelemetry is as BenchmarkAccessLog: 5000 calls of a model a second, without an
// export, with metrics and a span for every hundredth as is the default, with a span for
// each, and once more without. The collector is in this process too and throws all away,
// so cpu has its share of reading the messages.
func BenchmarkTelemetry(b *testing.B) {
	up := testenv.ServeRaw(b, func(c *testenv.Raw) {
		_ = c.SetDeadline(time.Time{})
		for head := c.Head(); head != ""; head = c.Head() {
			c.SendExact(okAnswer)
		}
	})
	var sent atomic.Int64
	c := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		sent.Add(n)
	}))
	defer c.Close()
	quiet := "log: {level: error, access: {sample: 0, summary: 0s}}\nupstreams: {up: {url: 'http://UPSTREAM', dialect: openai}}\n"
	export := func(more string) string {
		return quiet + "telemetry: {otlp: {endpoint: '" + c.URL + "', interval: 1s" + more + "}}\n"
	}
	arms := []*logArm{newLogArm(b, up, quiet), newLogArm(b, up, export("")), newLogArm(b, up, export(", sample: 1")), newLogArm(b, up, quiet)}
	for _, a := range arms {
		a.ask = "POST /up/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
	}
	takeTurns(b, arms)
	without := arms[0]
	b.ReportMetric(0, "ns/op") // it is the rounds' length
	b.ReportMetric(float64(median(without.cpu).Nanoseconds())/1000, "cpu-off-µs")
	for name, a := range map[string]*logArm{"default": arms[1], "all": arms[2], "off": arms[3]} {
		b.ReportMetric(medianRatio(a.p50, without.p50), "p50-"+name+"/off")
		b.ReportMetric(medianRatio(a.p99, without.p99), "p99-"+name+"/off")
		b.ReportMetric(medianRatio(a.cpu, without.cpu), "cpu-"+name+"/off")
	}
	b.ReportMetric(float64(sent.Load()), "sent-bytes")
}
