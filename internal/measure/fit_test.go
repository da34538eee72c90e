// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"errors"
	"math"
	"strings"
	"testing"
)

var truth = Curve{A: 2, B: 0.3, C: 0.2, D: 0.002}

// grid is repeat calls in each cell, with relative noise.
func grid(k Curve, contexts, outputs []float64, repeat int, noise float64, seed uint64) (points []Point) {
	r := newRand(seed, 99)
	for range repeat {
		for _, c := range contexts {
			for _, g := range outputs {
				points = append(points, Point{c, g, k.At(c, g) * math.Exp(noise*r.NormFloat64())})
			}
		}
	}
	return points
}

var (
	wideContexts = []float64{32, 128, 512, 2048, 8192, 32768, 131072}
	wideOutputs  = []float64{1, 8, 64, 512, 4096}
)

func values(k Curve) [nparam]float64 { return [nparam]float64{k.A, k.B, k.C, k.D} }

func TestFitFindsKnownParametersWithoutNoise(t *testing.T) {
	for _, want := range []Curve{truth, {A: 40, B: 0.0018, C: 0.05, D: 0.01}, {A: 0.1, B: 2, C: 1, D: 1e-3}} {
		f, err := FitCurve(grid(want, wideContexts, wideOutputs, 1, 0, 1), 1)
		if err != nil {
			t.Fatal(err)
		}
		got := values(f.Curve())
		for i, w := range values(want) {
			if math.Abs(got[i]/w-1) > 1e-3 {
				t.Errorf("%v: parameter %s = %v, want %v", want, f.Parameters[i].Name, got[i], w)
			}
		}
		if f.Error > 1e-6 || !f.Settled {
			t.Errorf("%v: relative error %v, settled %v", want, f.Error, f.Settled)
		}
	}
}

// TestFitIntervalsHoldTheTruth: of 95 % intervals nearly all must.
func TestFitIntervalsHoldTheTruth(t *testing.T) {
	const runs = 20
	var held [nparam]int
	for seed := range uint64(runs) {
		f, err := FitCurve(grid(truth, wideContexts, wideOutputs, 4, 0.02, seed), seed)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range values(truth) {
			if in := f.Parameters[i].Interval; in.Low <= w && w <= in.High {
				held[i]++
			}
		}
	}
	for i, n := range held {
		if n < 16 { // of 20 at 95 %, fewer than 16 come up once in 400
			t.Errorf("parameter %d: %d of %d intervals hold the truth", i, n, runs)
		}
	}
}

func TestFitIsRepeatable(t *testing.T) {
	points := grid(truth, wideContexts, wideOutputs, 2, 0.05, 3)
	one, err1 := FitCurve(points, 7)
	two, err2 := FitCurve(points, 7)
	if err1 != nil || err2 != nil || *one != *two {
		t.Errorf("two fits with one seed: %+v, %v and %+v, %v", one, err1, two, err2)
	}
}

func TestFitSaysWhatTheGridLacks(t *testing.T) {
	tests := []struct {
		name     string
		contexts []float64
		outputs  []float64
		repeat   int
		want     string
	}{
		{"one context", []float64{512}, wideOutputs, 4, "distinct context lengths: 1,"},
		{"two contexts", []float64{512, 4096}, wideOutputs, 4, "distinct context lengths: 2,"},
		{"contexts too alike", []float64{500, 510, 520}, wideOutputs, 4, "distinct context lengths: 1,"},
		{"one output", wideContexts, []float64{64}, 4, "distinct output lengths: 1,"},
		{"few calls", []float64{32, 512, 8192}, []float64{8, 64}, 1, "calls that ended well: 6,"},
		{"no length", []float64{0, 512, 8192}, wideOutputs, 1, "not above zero"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := FitCurve(grid(truth, tt.contexts, tt.outputs, tt.repeat, 0, 1), 1)
			if !errors.Is(err, ErrTooFew) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("FitCurve = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestFitDoubtsWhatTheDataDoNotDetermine(t *testing.T) {
	tests := []struct {
		name     string
		points   []Point
		doubtful []int
	}{
		{"d has saturated", grid(truth, []float64{16384, 32768, 65536, 131072}, wideOutputs, 3, 0.02, 1), []int{3}},
		{"noise hides all but the scale", grid(truth, []float64{512, 1024, 2048}, []float64{64, 128}, 3, 0.3, 1), []int{1, 2}},
		{"b has no effect", grid(Curve{A: 2, C: 0.2, D: 0.002}, wideContexts, wideOutputs, 3, 0.02, 1), []int{1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := FitCurve(tt.points, 1)
			if err != nil {
				t.Fatal(err)
			}
			if f.Supported() {
				t.Errorf("all parameters are called supported: %+v", f)
			}
			for _, i := range tt.doubtful {
				if p := f.Parameters[i]; p.Supported || p.Why == "" {
					t.Errorf("parameter %s = %v in %v is called supported", p.Name, p.Value, p.Interval)
				}
			}
		})
	}
	if f, err := FitCurve(grid(truth, wideContexts, wideOutputs, 4, 0.02, 1), 1); err != nil || !f.Supported() {
		t.Errorf("a good grid is doubted: %+v, %v", f, err)
	}
}

func TestConditionFindsTheWeakDirection(t *testing.T) {
	ratio, weak := condition(matrix{{1, 0, 0, 0}, {0, 4, 0, 0}, {0, 0, 1, 0.999}, {0, 0, 0.999, 1}})
	if math.Abs(ratio-1.999/0.001) > 1e-6 {
		t.Errorf("condition %v, want 1999", ratio)
	}
	if math.Abs(math.Abs(weak[2])-math.Sqrt(0.5)) > 1e-9 || math.Abs(weak[2]+weak[3]) > 1e-9 {
		t.Errorf("weakest direction %v", weak)
	}
	if ratio, weak = condition(matrix{{1}, {}, {0, 0, 1}, {0, 0, 0, 1}}); !math.IsInf(ratio, 1) || weak[1] != 1 {
		t.Errorf("without effect: condition %v, direction %v", ratio, weak)
	}
}
