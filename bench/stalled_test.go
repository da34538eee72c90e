// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// TestStalledReportDividesByBudgetAndIdle: the peak is compared with what the operator
// has set plus what the process needs anyway, and a proxy without a budget is not.
func TestStalledReportDividesByBudgetAndIdle(t *testing.T) {
	r := newStalledReport(settings{stalled: 100, memory: 2, slowFor: time.Second})
	bounded := stallSpec{spec: spec{name: "warmwire 64MiB"}, limit: 64 << 20}
	for _, peak := range []int64{42 << 20, 63 << 20} {
		r.add(bounded, false, &stalled{Base: 20 << 20, Steady: 40 << 20, Peak: peak, Taken: 128 << 10, AloneP99: 10, BesideP99: 15, Tokens: 1, Cut: 1})
	}
	r.add(stallSpec{spec: spec{name: "stock"}}, true, &stalled{Base: 1, Peak: 2, AloneP99: 1})
	r.add(stallSpec{spec: spec{name: "not installed"}}, true, nil)
	for _, done := range []time.Duration{0, 2 * time.Second} {
		r.addSpooled(spec{name: "now and then"}, &spooled{Done: done, Equal: spoolReaders})
	}
	r.addSpooled(spec{name: "spool"}, &spooled{Done: time.Second, Equal: spoolReaders - 1})
	r.small = []contained{{spec: spec{name: "killed"}, kills: 1}}
	text := strings.Join(strings.Fields(r.markdown(time.Unix(0, 0), time.Minute)), " ")
	for _, want := range []string{
		"| warmwire 64MiB | 20 (20–20) | 40 (40–40) | 52 (42–63) | 62 (50–75) | 128 (128–128) | 1.50 (1.50–1.50) | 1.000 (1.000–1.000) | 2 |",
		"| no budget |",
		"| now and then | it waited |",
		"| spool | 1.0 (1.0–1.0) | 0 (0–0) | 0 (0–0) | 19 of 20 |",
		"| killed | 0 | 0 | 0 | 1 | 0 of 50 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "not installed") {
		t.Error("a proxy that was not run has a row")
	}
}

// TestLargeAnswersAreComparedByteForByte: one byte that is lost shows.
func TestLargeAnswersAreComparedByteForByte(t *testing.T) {
	u := new(upstream)
	srv := httptest.NewServer(http.HandlerFunc(u.serveBig))
	defer srv.Close()
	c := newClient(srv.URL, nil, nil)
	defer c.close()
	if n := c.slowThenAll(context.Background(), 2, 0); n != 2 {
		t.Errorf("%d of 2 answers are right", n)
	}
	if got := u.taken.Load(); got != 2*containerAnswer {
		t.Errorf("%d bytes were counted, want %d", got, 2*containerAnswer)
	}
	if bigSum(100_000) == bigSum(99_999) || bigSum(0) != sha256.Sum256(nil) {
		t.Error("sums do not tell answers apart")
	}
}

func TestPeakOfThisProcess(t *testing.T) {
	most, err := peak(os.Getpid())
	now, err2 := rss(os.Getpid())
	if err != nil || err2 != nil || most < now/2 || most > 4<<30 {
		t.Errorf("peak %d, now %d: %v %v", most, now, err, err2)
	}
	if _, err := peak(-1); err == nil {
		t.Error("the peak of a process that cannot be")
	}
}
