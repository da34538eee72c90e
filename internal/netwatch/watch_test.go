// SPDX-License-Identifier: Apache-2.0

package netwatch

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/netlab"
)

func TestMain(m *testing.M) {
	if netlab.Main() { // this process is a child of a lab
		return
	}
	goleak.VerifyTestMain(m)
}

// bubble runs a Watcher whose events and wall clock the test makes.
func bubble(t *testing.T, run func(w *Watcher, sleep func(time.Duration), told func() int)) {
	synctest.Test(t, func(t *testing.T) {
		var asleep atomic.Int64
		w := &Watcher{events: make(chan event), done: make(chan struct{})}
		w.wall = func() time.Time { return time.Now().Round(0).Add(time.Duration(asleep.Load())) }
		ctx, cancel := context.WithCancel(t.Context())
		calls := make(chan string, 100)
		go w.Run(ctx, func(why string) { calls <- why })
		run(w, func(d time.Duration) { asleep.Add(int64(d)) }, func() int { return len(calls) })
		cancel()
		<-w.done
	})
}

func TestChangesAreToldOnce(t *testing.T) {
	bubble(t, func(w *Watcher, _ func(time.Duration), told func() int) {
		say := func(what string, there bool) { w.events <- event{what, there} }
		pass := func() { time.Sleep(2 * settle) }
		say("a", true)
		say("r", true)
		pass()
		if n := told(); n != 0 {
			t.Errorf("what was there at the beginning is told %d times", n)
		}
		say("a", true) // a refresh
		pass()
		if n := told(); n != 0 {
			t.Errorf("a refresh is told %d times", n)
		}
		say("a", false)
		say("r", false)
		time.Sleep(settle / 2)
		say("b", true)
		say("r2", true)
		pass()
		if n := told(); n != 1 {
			t.Errorf("one move is told %d times", n)
		}
		say("r2", false)
		pass()
		if n := told(); n != 2 {
			t.Errorf("a lost route: told %d times in all", n)
		}
	})
}

func TestSleepIsNoticed(t *testing.T) {
	bubble(t, func(w *Watcher, sleep func(time.Duration), told func() int) {
		events := w.events
		time.Sleep(10 * time.Minute)
		sleep(2 * time.Second) // the clock is set
		time.Sleep(10 * time.Minute)
		if n := told(); n != 0 {
			t.Errorf("told %d times although it was awake", n)
		}
		sleep(time.Hour)
		time.Sleep(2 * clockEvery)
		if n := told(); n != 1 {
			t.Errorf("an hour of sleep is told %d times", n)
		}
		close(events) // the kernel's socket broke
		sleep(time.Hour)
		time.Sleep(2 * clockEvery)
		if n := told(); n != 2 {
			t.Errorf("without events: told %d times in all", n)
		}
	})
}
