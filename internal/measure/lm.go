// SPDX-License-Identifier: Apache-2.0

package measure

import "math"

// nparam is the number of parameters of the latency curve.
const nparam = 4

type vector [nparam]float64

type matrix [nparam]vector

// Limits of the search. The problem has four parameters and smooth residuals:
// it ends in some tens of steps or not at all.
const (
	maxSteps  = 400
	tolerance = 1e-10 // relative gain of a step, below which the search is over
	maxDamp   = 1e12
)

// leastSquares finds p that makes the sum of squares of the residuals least, by
// Levenberg's and Marquardt's method: steps between Gauss-Newton's and the
// gradient's, scaled by the curvature of each parameter. eval adds up JᵀJ, Jᵀr
// and rᵀr at p. ok tells whether the search came to rest.
func leastSquares(p vector, eval func(vector) (matrix, vector, float64), clamp func(vector) vector) (best vector, sum float64, ok bool) {
	jtj, jtr, sum := eval(p)
	damp := 1e-3
	for range maxSteps {
		a := jtj
		for i := range nparam {
			a[i][i] += damp * max(jtj[i][i], 1e-12) // a parameter without effect stays put
		}
		step, solved := solve(a, jtr)
		if !solved {
			damp *= 10
			continue
		}
		next := p
		for i := range nparam {
			next[i] -= step[i]
		}
		next = clamp(next)
		nextJTJ, nextJTR, nextSum := eval(next)
		if math.IsNaN(nextSum) || nextSum >= sum {
			if damp > maxDamp || sum == 0 {
				return p, sum, true // no direction leads down
			}
			damp *= 4
			continue
		}
		gain := (sum - nextSum) / sum
		p, jtj, jtr, sum = next, nextJTJ, nextJTR, nextSum
		damp = max(damp/3, 1e-15)
		if gain < tolerance {
			return p, sum, true
		}
	}
	return p, sum, false
}

// solve is Gauss's elimination with pivoting for a·x = b.
func solve(a matrix, b vector) (x vector, ok bool) {
	for col := range nparam {
		pivot := col
		for r := col + 1; r < nparam; r++ {
			if math.Abs(a[r][col]) > math.Abs(a[pivot][col]) {
				pivot = r
			}
		}
		if v := a[pivot][col]; v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return vector{}, false
		}
		a[col], a[pivot] = a[pivot], a[col]
		b[col], b[pivot] = b[pivot], b[col]
		for r := col + 1; r < nparam; r++ {
			f := a[r][col] / a[col][col]
			for k := col; k < nparam; k++ {
				a[r][k] -= f * a[col][k]
			}
			b[r] -= f * b[col]
		}
	}
	for r := nparam - 1; r >= 0; r-- {
		x[r] = b[r]
		for k := r + 1; k < nparam; k++ {
			x[r] -= a[r][k] * x[k]
		}
		x[r] /= a[r][r]
	}
	return x, true
}

// condition is the ratio of the largest to the smallest eigenvalue of a
// symmetric matrix (Jacobi's rotations), and the direction of the smallest. The
// matrix is scaled to a unit diagonal first, so that units do not matter.
func condition(a matrix) (ratio float64, weakest vector) {
	var scale vector
	for i := range nparam {
		if a[i][i] <= 0 {
			var v vector
			v[i] = 1 // this parameter changes nothing at all
			return math.Inf(1), v
		}
		scale[i] = 1 / math.Sqrt(a[i][i])
	}
	for i := range nparam {
		for j := range nparam {
			a[i][j] *= scale[i] * scale[j]
		}
	}
	vectors := rotate(&a)
	low, high := 0, 0
	for i := range nparam {
		if a[i][i] < a[low][low] {
			low = i
		}
		if a[i][i] > a[high][high] {
			high = i
		}
	}
	for i := range nparam {
		weakest[i] = vectors[i][low]
	}
	return a[high][high] / max(a[low][low], 1e-300), weakest
}

// rotate makes a diagonal and returns its eigenvectors as columns.
func rotate(a *matrix) (v matrix) {
	for i := range nparam {
		v[i][i] = 1
	}
	for range 50 * nparam * nparam {
		p, q := 0, 1
		for i := range nparam {
			for j := i + 1; j < nparam; j++ {
				if math.Abs(a[i][j]) > math.Abs(a[p][q]) {
					p, q = i, j
				}
			}
		}
		if math.Abs(a[p][q]) < 1e-16 {
			break
		}
		theta := 0.5 * math.Atan2(2*a[p][q], a[q][q]-a[p][p])
		c, s := math.Cos(theta), math.Sin(theta)
		for k := range nparam {
			a[k][p], a[k][q] = c*a[k][p]-s*a[k][q], s*a[k][p]+c*a[k][q]
		}
		for k := range nparam {
			a[p][k], a[q][k] = c*a[p][k]-s*a[q][k], s*a[p][k]+c*a[q][k]
			v[k][p], v[k][q] = c*v[k][p]-s*v[k][q], s*v[k][p]+c*v[k][q]
		}
	}
	return v
}
