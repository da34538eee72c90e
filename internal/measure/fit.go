// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Curve is the latency a·(1 + b·C^0.3)·(G + c·G^1.2)·(1 − exp(−d·C)) in
// milliseconds of a call with C tokens of context and G tokens of output.
type Curve struct{ A, B, C, D float64 }

// At is the curve's latency in milliseconds.
func (k Curve) At(context, output float64) float64 {
	return k.A * (1 + k.B*math.Pow(context, 0.3)) * (output + k.C*math.Pow(output, 1.2)) * -math.Expm1(-k.D*context)
}

// A Point is one measured call.
type Point struct {
	Context float64 // tokens of the prompt
	Output  float64 // tokens of the answer
	Latency float64 // e2e in milliseconds
}

// A Parameter is one of the curve's four, with what the data say of it.
type Parameter struct {
	Name      string   `json:"name"`
	Value     float64  `json:"value"`
	Interval  Interval `json:"interval_95"`
	Supported bool     `json:"supported"`
	Why       string   `json:"why,omitempty"` // why it is not
}

// A Fit is the curve that fits best, and how far it can be trusted.
type Fit struct {
	Parameters [nparam]Parameter `json:"parameters"` // a, b, c, d
	Points     int               `json:"points"`
	Contexts   int               `json:"distinct_contexts"`
	Outputs    int               `json:"distinct_outputs"`
	Error      float64           `json:"relative_error"` // standard deviation of the residuals, as a share of the latency
	Condition  float64           `json:"condition"`      // of the scaled normal equations
	Weakest    string            `json:"weakest"`        // the combination that the data determine least
	Settled    bool              `json:"settled"`        // the search came to rest
}

// Curve is the fitted curve.
func (f *Fit) Curve() Curve {
	p := f.Parameters
	return Curve{p[0].Value, p[1].Value, p[2].Value, p[3].Value}
}

// Supported tells whether the data determine all parameters.
func (f *Fit) Supported() bool {
	return f.Settled && !slices.ContainsFunc(f.Parameters[:], func(p Parameter) bool { return !p.Supported })
}

// ErrTooFew is matched by the error of [FitCurve] for data that no search could
// fit.
var ErrTooFew = errors.New("the data cannot support the curve")

const (
	minContexts = 3 // a, b and d all act on C: two lengths leave one of them free
	minOutputs  = 2 // c acts on G alone
	minPoints   = 8 // twice the parameters: fewer leave no residuals to speak of
	// wide is the ratio of an interval's ends from which a parameter is not
	// determined: not even its order of magnitude is known.
	wide = 10
	// maxCondition is where the normal equations lose the digits that a
	// measurement has: 1e10 leaves about six of sixteen.
	maxCondition = 1e10
	// refits of the bootstrap: 500 put 12 beyond each end of a 95 % interval.
	refits = 500
	// lowest and highest logarithm of a parameter; beyond, it is zero or
	// endless for all purposes.
	lowest, highest = -30, 20
)

// distinct counts lengths that differ by more than a tenth: the server's counts
// of equal prompts scatter a little.
func distinct(points []Point, of func(Point) float64) int {
	var v []float64
	for _, p := range points {
		v = append(v, of(p))
	}
	slices.Sort(v)
	n, last := 0, 0.0
	for _, x := range v {
		if n == 0 || x > 1.1*last {
			n, last = n+1, x
		}
	}
	return n
}

// FitCurve fits the curve to points. Residuals are relative (of logarithms), so
// that short answers count as much as long ones; the parameters are kept above
// zero. Intervals come from a bootstrap of the residuals with that seed.
func FitCurve(points []Point, seed uint64) (*Fit, error) {
	f := &Fit{
		Points:   len(points),
		Contexts: distinct(points, func(p Point) float64 { return p.Context }),
		Outputs:  distinct(points, func(p Point) float64 { return p.Output }),
	}
	if err := f.enough(points); err != nil {
		return nil, err
	}
	logs := make([]float64, len(points))
	for i, p := range points {
		logs[i] = math.Log(p.Latency)
	}
	eval := normal(bases(points), logs)
	best, sum, settled := search(points, logs, eval)
	f.Settled = settled
	freedom := float64(len(points) - nparam)
	f.Error = math.Sqrt(sum / freedom)
	jtj, _, _ := eval(best)
	var weakest vector
	f.Condition, weakest = condition(jtj)
	f.Weakest = combination(weakest)
	draws := bootstrap(points, logs, best, seed)
	for i, name := range []string{"a", "b", "c", "d"} {
		p := Parameter{Name: name, Value: math.Exp(best[i])}
		p.Interval = Interval{math.Exp(quantile(draws[i], 0.025)), math.Exp(quantile(draws[i], 0.975))}
		p.Why = cmp.Or(flat(eval, best, i, sum/freedom), f.doubt(p, math.Abs(weakest[i]) > 0.3))
		p.Supported = p.Why == ""
		f.Parameters[i] = p
	}
	return f, nil
}

// enough tells what the grid lacks.
func (f *Fit) enough(points []Point) error {
	var lacks []string
	lack := func(have, want int, what, why string) {
		if have < want {
			lacks = append(lacks, fmt.Sprintf("%s: %d, want at least %d%s", what, have, want, why))
		}
	}
	lack(f.Points, minPoints, "calls that ended well", "")
	lack(f.Contexts, minContexts, "distinct context lengths", " to tell a, b and d apart")
	lack(f.Outputs, minOutputs, "distinct output lengths", " to tell c from a")
	for _, p := range points {
		if !(p.Context > 0 && p.Output > 0 && p.Latency > 0) || math.IsInf(p.Context+p.Output+p.Latency, 0) {
			lacks = append(lacks, "a length or latency that is not above zero")
			break
		}
	}
	if lacks != nil {
		return fmt.Errorf("%w: %s", ErrTooFew, strings.Join(lacks, "; "))
	}
	return nil
}

// flat says that a parameter does not matter. Where the curve does not change
// with it the search has no reason to move, and neither have the refits of the
// bootstrap: their narrow interval would be that of the starting point.
func flat(eval func(vector) (matrix, vector, float64), best vector, i int, variance float64) string {
	_, _, least := eval(best)
	// 3.84 is the 95 % point of chi-squared with one degree of freedom; the
	// second term stands for the rounding of data without noise.
	enough := least + 3.84*variance + 1e-18
	moved := func(by float64) float64 {
		v := best
		v[i] += math.Log(by)
		_, _, sum := eval(v)
		return sum
	}
	switch {
	case moved(1.0/wide) < enough:
		return "cannot be told from zero"
	case moved(wide) < enough:
		return "has no upper limit"
	}
	return ""
}

// doubt says why the data do not determine p, or nothing.
func (f *Fit) doubt(p Parameter, inWeakest bool) string {
	switch {
	case p.Interval.Low <= 1e-9*max(p.Interval.High, math.SmallestNonzeroFloat64) || p.Value <= math.Exp(lowest+1):
		return "cannot be told from zero"
	case p.Value >= math.Exp(highest-1) || p.Interval.High >= math.Exp(highest-1):
		return "has no upper limit"
	case p.Interval.High > wide*p.Interval.Low:
		return fmt.Sprintf("the interval spans a factor of %s", number(p.Interval.High/p.Interval.Low))
	case f.Condition > maxCondition && inWeakest:
		return "only its combination with others is determined: " + f.Weakest
	}
	return ""
}

// combination writes a direction in the logarithms of the parameters.
func combination(v vector) string {
	var parts []string
	for i, name := range []string{"a", "b", "c", "d"} {
		if math.Abs(v[i]) > 0.1 {
			parts = append(parts, fmt.Sprintf("%+.2f·ln %s", v[i], name))
		}
	}
	return strings.Join(parts, " ")
}

// starts are where searches begin: the curve has valleys in which b and d trade
// places with a.
var starts = [...][3]float64{{1e-3, 1e-2, 1e-4}, {1e-1, 1e-1, 1e-3}, {1, 1, 1e-2}, {1e-2, 1, 1e-5}, {1e-1, 1e-2, 1e-1}}

// search tries all starts.
func search(points []Point, logs []float64, eval func(vector) (matrix, vector, float64)) (best vector, sum float64, settled bool) {
	sum = math.Inf(1)
	for _, s := range starts {
		k := Curve{1, s[0], s[1], s[2]}
		off := 0.0
		for i, p := range points {
			off += logs[i] - math.Log(k.At(p.Context, p.Output))
		}
		start := vector{off / float64(len(points)), math.Log(s[0]), math.Log(s[1]), math.Log(s[2])} // a fits in the mean
		p, got, ok := leastSquares(start, eval, clamp)
		if got < sum {
			best, sum, settled = p, got, ok
		}
	}
	return best, sum, settled
}

func clamp(v vector) vector {
	for i := range v {
		v[i] = min(max(v[i], lowest), highest)
	}
	return v
}

// A basis holds the powers of one point, which no parameter changes.
type basis struct{ context, context03, output02, logOutput float64 }

func bases(points []Point) []basis {
	out := make([]basis, len(points))
	for i, p := range points {
		out[i] = basis{p.Context, math.Pow(p.Context, 0.3), math.Pow(p.Output, 0.2), math.Log(p.Output)}
	}
	return out
}

// normal returns the function that adds up the normal equations of the
// residuals ln f − ln y at the logarithms of the parameters.
func normal(points []basis, logs []float64) func(vector) (matrix, vector, float64) {
	return func(v vector) (jtj matrix, jtr vector, sum float64) {
		b, c, d := math.Exp(v[1]), math.Exp(v[2]), math.Exp(v[3])
		for i, p := range points {
			bc, cg, dc := b*p.context03, c*p.output02, d*p.context
			rest := -math.Expm1(-dc)
			r := v[0] + p.logOutput + math.Log((1+bc)*(1+cg)*rest) - logs[i]
			j := vector{1, bc / (1 + bc), cg / (1 + cg), dc * math.Exp(-dc) / rest} // d r / d ln of each
			for x := range nparam {
				for y := range nparam {
					jtj[x][y] += j[x] * j[y]
				}
				jtr[x] += j[x] * r
			}
			sum += r * r
		}
		return jtj, jtr, sum
	}
}

// bootstrap fits to the best curve with its own residuals in another order, and
// returns the sorted logarithms of each parameter.
func bootstrap(points []Point, logs []float64, best vector, seed uint64) (draws [nparam][]float64) {
	k := Curve{math.Exp(best[0]), math.Exp(best[1]), math.Exp(best[2]), math.Exp(best[3])}
	n := len(points)
	fitted, residuals := make([]float64, n), make([]float64, n)
	// Residuals of a fit are smaller than the noise was.
	grow := math.Sqrt(float64(n) / float64(n-nparam))
	for i, p := range points {
		fitted[i] = math.Log(k.At(p.Context, p.Output))
		residuals[i] = grow * (logs[i] - fitted[i])
	}
	r, basis := newRand(seed, forBootstrap), bases(points)
	y := make([]float64, n)
	for range refits {
		for i := range y {
			y[i] = fitted[i] + residuals[r.IntN(n)]
		}
		p, _, _ := leastSquares(best, normal(basis, y), clamp)
		for i := range draws {
			draws[i] = append(draws[i], p[i])
		}
	}
	for i := range draws {
		slices.Sort(draws[i])
	}
	return draws
}
