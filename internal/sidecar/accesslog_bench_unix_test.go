// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sidecar_test

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

const (
	logRate  = 5000 // requests a second, the source study's
	logConns = 50
	logRound = time.Second
)

// BenchmarkAccessLog makes 5000 requests a second through a whole Warmwire, a
// second without and a second with an access log of all of them, in JSON, to a file;
// one iteration is one such round of each. A third Warmwire, without a log like the
// first, shows what the machine itself changes between two equal ones. Times count
// from when a request was due, so that one which had to wait for its turn is not
// flattered.
//
// It reports the medians of the rounds, and the medians of their ratios with the log
// to without. cpu is the process's time on a core for one request, client, Warmwire,
// log and upstream together, which other work on the machine changes less; lost is
// the records that are missing in the file.
func BenchmarkAccessLog(b *testing.B) {
	up := testenv.ServeRaw(b, func(c *testenv.Raw) {
		_ = c.SetDeadline(time.Time{})
		for head := c.Head(); head != ""; head = c.Head() {
			c.SendExact(okAnswer)
		}
	})
	file := filepath.Join(b.TempDir(), "access.log")
	off := "log: {level: error, access: {sample: 0, summary: 0s}}\n"
	arms := []*logArm{
		newLogArm(b, up, off),
		newLogArm(b, up, "log: {level: error, access: {sample: 1, format: json, file: "+file+"}}\n"),
		newLogArm(b, up, off),
	}
	takeTurns(b, arms)
	without, with, again := arms[0], arms[1], arms[2]
	b.ReportMetric(0, "ns/op") // it is the rounds' length
	for name, a := range map[string]*logArm{"off": without, "on": with} {
		b.ReportMetric(float64(median(a.p50).Microseconds()), "p50-"+name+"-µs")
		b.ReportMetric(float64(median(a.p99).Microseconds()), "p99-"+name+"-µs")
		b.ReportMetric(float64(median(a.cpu).Nanoseconds())/1000, "cpu-"+name+"-µs")
	}
	b.ReportMetric(medianRatio(with.p50, without.p50), "p50-on/off")
	b.ReportMetric(medianRatio(with.p99, without.p99), "p99-on/off")
	b.ReportMetric(medianRatio(again.p99, without.p99), "p99-off/off")
	b.ReportMetric(medianRatio(with.cpu, without.cpu), "cpu-on/off")
	b.ReportMetric(medianRatio(again.cpu, without.cpu), "cpu-off/off")
	records := strings.Count(readFile(b, file), `"msg":"request"`)
	b.ReportMetric(float64(with.made), "requests")
	b.ReportMetric(float64(with.made-records), "lost")
	if records != with.made {
		b.Errorf("%d records of %d requests", records, with.made)
	}
}

// takeTurns runs rounds of all arms, and ends them.
func takeTurns(b *testing.B, arms []*logArm) {
	for _, a := range arms { // connections and caches, not counted
		a.round()
		a.p50, a.p99, a.cpu = nil, nil, nil
	}
	for n := 0; b.Loop(); n++ {
		for i := range arms { // each comes first in turn
			arms[(n+i)%len(arms)].round()
		}
	}
	b.StopTimer()
	for _, a := range arms {
		a.stop()
	}
}

// A logArm is one Warmwire with its connections, and the times of its rounds.
type logArm struct {
	*rig
	ask           string // a request; "" = one without a body
	conns         []*testenv.Raw
	made          int
	p50, p99, cpu []time.Duration
}

func newLogArm(b *testing.B, up, more string) *logArm {
	a := &logArm{rig: start(b, up, more)}
	for range logConns {
		c := a.dial()
		_ = c.SetDeadline(time.Time{})
		a.conns = append(a.conns, c)
	}
	return a
}

// round makes requests at the rate, each when it is due.
func (a *logArm) round() {
	const n = int(logRate * logRound / time.Second)
	took := make([]time.Duration, n)
	var crowd sync.WaitGroup
	begin, worked := time.Now(), cpuTime()
	for w, c := range a.conns {
		crowd.Go(func() {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for i := w; i < n; i += logConns {
				due := begin.Add(time.Duration(i) * time.Second / logRate)
				timer.Reset(time.Until(due))
				<-timer.C
				if err := a.exchange(c); err != nil {
					a.t.Error(err)
					return
				}
				took[i] = time.Since(due)
			}
		})
	}
	crowd.Wait()
	a.made += n
	slices.Sort(took)
	a.p50, a.p99, a.cpu = append(a.p50, took[n/2]), append(a.p99, took[n*99/100]), append(a.cpu, (cpuTime()-worked)/time.Duration(n))
}

// cpuTime is how long this process has been on a core.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for this process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (a *logArm) exchange(c *testenv.Raw) error {
	if _, err := io.WriteString(c.TCPConn, cmp.Or(a.ask, "GET /up/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.In, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
		return fmt.Errorf("answer %q, %v", body, err)
	}
	return nil
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

func medianRatio(a, b []time.Duration) float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = float64(a[i]) / float64(b[i])
	}
	slices.Sort(r)
	return r[len(r)/2]
}
