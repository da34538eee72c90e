// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
)

// program builds the Warmwire that a study runs.
func program(t *testing.T) string {
	t.Helper()
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	path, err := testenv.Build("../..", "cmd/warmwire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(path)) })
	return path
}

// The smoke form of a study finds what is known to be so: streams through a
// blackout are cut where a client has a short limit and nowhere else, a new
// stream costs round trips, and who has a limit knows of a dead path.
func TestStudyFindsWhatIsKnown(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var told []string
	r, err := Study(ctx, Options{Warmwire: program(t), Length: Smoke, Only: []string{Streams}, Seed: 5, Progress: func(name string, _ time.Duration) { told = append(told, name) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(told) != 3 || len(r.Scenarios) != 3 {
		t.Fatalf("ran %v", told)
	}
	arm := func(scenario int, name string) *ArmResult {
		for i, a := range r.Arms {
			if a.Name == name {
				return r.Scenarios[scenario].Arms[i]
			}
		}
		t.Fatalf("no arm %s", name)
		return nil
	}
	for i, a := range r.Arms {
		got := r.Scenarios[0].Arms[i]
		if got.Frames == 0 {
			t.Errorf("%s: no frame came", a.Name)
		}
	}
	if got := arm(0, "tcp 1s"); got.Cuts == 0 || got.PerEvent.Mean != 1 || got.Why["limit"] == 0 {
		t.Errorf("a limit of 1 s in a blackout of more: %+v", got)
	}
	for _, name := range []string{"tcp", "ww h1", "ww h2", "ww ws"} {
		if got := arm(0, name); got.Cuts != 0 || got.Stalls == 0 || got.LongestStall < eventMin {
			t.Errorf("%s in a blackout: %d cuts (%v), %d stalls, the longest %v; want no cut and a stall", name, got.Cuts, got.Why, got.Stalls, got.LongestStall)
		}
	}
	if got := arm(1, "tcp"); got.Median < 160*time.Millisecond || got.Answered != 3 {
		t.Errorf("a new connection and a request cost two round trips of 80 ms: %+v", got)
	}
	if got := arm(1, "ww h2"); got.Median < 80*time.Millisecond || got.Median >= arm(1, "tcp").Median {
		t.Errorf("a warm connection costs one round trip: %v", got.Median)
	}
	for _, name := range []string{"tcp 1s", "h2 1+1", "h2 3+1.5"} {
		if got := arm(2, name); got.Known == 0 || got.Unknown != 0 {
			t.Errorf("%s: %d knew of the dead path, %d did not", name, got.Known, got.Unknown)
		}
	}
	if got := arm(2, "tcp"); got.Unknown == 0 {
		t.Errorf("a client without a limit knew of the dead path: %+v", got)
	}
	if p := r.Scenarios[1].Path; p.RTT < 79*time.Millisecond || p.Sent == 0 {
		t.Errorf("path: %+v", p)
	}
}

// The smoke form of what is about heartbeats: a fixed one cuts in a blackout and
// Warmwire's none; a dead flow is left soon after the first doubt.
func TestHeartbeatsAreMeasured(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := Study(ctx, Options{Warmwire: program(t), Length: Smoke, Only: []string{Heartbeats}, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]*ScenarioResult{}
	for _, s := range r.Scenarios {
		of[s.Name] = s
	}
	silent, dead := of["silent-blackouts"], of["dead-talk"]
	if len(of) != 2 || silent == nil || dead == nil {
		t.Fatalf("ran %d scenarios", len(of))
	}
	for i, a := range r.BeatArms {
		if got := silent.Arms[i]; got.Frames == 0 || got.Beats.Packets == 0 || got.Beats.Bytes < got.Beats.Packets*40 {
			t.Errorf("%s: %d frames, %.0f packets and %.0f bytes an hour", a.Name, got.Frames, got.Beats.Packets, got.Beats.Bytes)
		}
	}
	if missed := r.Missed(); len(missed) > 0 {
		t.Errorf("missed: %s", strings.Join(missed, "; "))
	}
	if fixed := silent.Arms[armOf(t, "ws 3/1.5")]; fixed.Pings == 0 {
		t.Errorf("the fixed heartbeat: %+v", fixed)
	}
	if got := dead.Arms[armOf(t, "ws 3/1.5")]; got.Known != r.Streams || got.Beats.FromAsked < 1400*time.Millisecond || got.Beats.FromAsked > 3*time.Second {
		t.Errorf("the fixed heartbeat knows 1.5 s after the ping that nobody answered: %d of %d after %v", got.Known, r.Streams, got.Beats.FromAsked)
	}
	for _, name := range []string{"ww ws", "ww h2", "ww h1"} {
		got := dead.Arms[armOf(t, name)]
		if got.Beats.FromDoubt < judgement-watchEvery || got.Beats.Warmwire.Doubts == 0 || got.Beats.Warmwire.DeadFlow == 0 {
			t.Errorf("%s: %v from the doubt to the verdict, %+v; a verdict takes %v", name, got.Beats.FromDoubt, got.Beats.Warmwire, judgement)
		}
	}
	if got := dead.Arms[armOf(t, "tcp")]; got.Unknown != r.Streams {
		t.Errorf("a client without a limit knew of the dead flow: %+v", got)
	}
}

func TestStudyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	_, err := Study(ctx, Options{Warmwire: program(t), Length: Smoke, Only: []string{"blackouts"}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

// What was measured before the end is not lost.
func TestStudyKeepsWhatItHas(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := 0
	r, err := Study(ctx, Options{Warmwire: program(t), Length: Smoke, Only: []string{Streams}, Progress: func(string, time.Duration) {
		if begun++; begun == 2 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || r == nil || len(r.Scenarios) != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestStudySaysWhatWarmwireDiedOf(t *testing.T) {
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	_, err := Study(t.Context(), Options{Warmwire: "/bin/false", Length: Smoke})
	if err == nil {
		t.Fatal("a study without a Warmwire went well")
	}
	t.Log(err)
}
