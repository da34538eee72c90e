// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
)

// TestLabScripts runs what needs the lab, testdata/lab/*.txtar.
func TestLabScripts(t *testing.T) {
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/lab", Setup: setUpScript})
}

func TestShare(t *testing.T) {
	for in, want := range map[string]float64{"0": 0, "1%": 0.01, "0.5 %": -1, "0.25": 0.25, "120%": 1.2, "": -1, "one": -1} {
		got := -1.0
		if err := parseShare(in, &got); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q = %v, %v", in, got, err)
		}
	}
}

func TestRate(t *testing.T) {
	for in, want := range map[string]int64{"4M": 4e6, "64k": 64e3, "1.5G": 15e8, "800": 800, "4MB": 0, "-1": 0, "M": 0, "1e300": 0} {
		var got int64
		if err := parseRate(in, &got); (err != nil) != (want == 0) || got != want {
			t.Errorf("%q = %v, %v", in, got, err)
		}
	}
}

// The share that is lost is the time in the bad state: Enter/(Enter+Leave).
func TestBurst(t *testing.T) {
	var b netlab.Burst
	if err := parseBurst("20%/4", &b); err != nil || b.Leave != 0.25 {
		t.Fatalf("%+v, %v", b, err)
	}
	if share := b.Enter / (b.Enter + b.Leave); share < 0.1999 || share > 0.2001 {
		t.Errorf("loses %v", share)
	}
	for _, bad := range []string{"", "1%", "/", "1%/0", "100%/3", "0/3", "1%/x"} {
		if err := parseBurst(bad, &b); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestScheduleFlag(t *testing.T) {
	for in, want := range map[string]netlab.Schedule{
		"2s/30s":    {First: 30e9, Every: 30e9, Length: 2e9},
		"1s-4s/10s": {First: 10e9, Every: 10e9, Length: 1e9, MaxLength: 4e9},
	} {
		var got []netlab.Schedule
		if err := parseSchedule(in, &got); err != nil {
			t.Errorf("%q: %v", in, err)
		} else if diff := cmp.Diff([]netlab.Schedule{want}, got); diff != "" {
			t.Errorf("%q: %s", in, diff)
		}
	}
	for _, bad := range []string{"", "2s", "/", "a/b", "1s-/3s", "1s-2s-3s/9s"} {
		var got []netlab.Schedule
		if err := parseSchedule(bad, &got); err == nil {
			t.Errorf("%q is accepted as %v", bad, got)
		}
	}
}
