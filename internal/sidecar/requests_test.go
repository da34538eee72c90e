// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/ingress"
)

// The slowest are those of the last hour, in order, and never more than the bound; so it
// is with what was interrupted.
func TestTheListsOfRequestsAreBounded(t *testing.T) {
	var l requestLists
	start := time.Unix(1000, 0)
	add := func(at, d time.Duration, o ingress.Outcome) {
		l.add(&ingress.Record{Start: start.Add(at), Duration: d, TTFT: d / 2, Outcome: o})
	}
	for i := range 200 {
		add(0, time.Duration(1+i*7919%200)*time.Second, ingress.OutcomeOK)
		add(0, time.Duration(i+1)*time.Millisecond, ingress.OutcomeCutUpstream)
	}
	for _, by := range []string{"", "duration", "first_token"} {
		list, ok := l.slowestBy(by, start.Add(time.Minute))
		if !ok || len(list) != maxShown || list[0].DurationMS != 200e3 || list[maxShown-1].DurationMS != 169e3 {
			t.Errorf("by %q: %d requests, %v to %v", by, len(list), list[0].DurationMS, list[len(list)-1].DurationMS)
		}
	}
	if list, ok := l.slowestBy("late", start); !ok || len(list) != 0 {
		t.Errorf("%d are late", len(list))
	}
	if _, ok := l.slowestBy("path", start); ok {
		t.Error("an order that does not exist")
	}
	if list := l.lastInterrupted(); len(list) != maxShown || list[0].DurationMS != 200 || list[maxShown-1].DurationMS != 169 {
		t.Errorf("%d were interrupted", len(list))
	}
	add(2*time.Hour, time.Millisecond, ingress.OutcomeOK) // all others are too old
	if list, _ := l.slowestBy("", start.Add(2*time.Hour+time.Minute)); len(list) != 1 || list[0].DurationMS != 1 {
		t.Errorf("after two hours: %d", len(list))
	}
}
