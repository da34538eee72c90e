// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"time"
)

// A Cell is one pair of lengths that is asked for, in tokens.
type Cell struct{ Context, Output int }

// Grid is every pair of lengths repeat times, each round in an order of its
// own, so that a drift of the server is not taken for an effect of length.
func Grid(contexts, outputs []int, repeat int, seed uint64) ([]Cell, error) {
	if n := len(contexts) * len(outputs) * repeat; n < 1 || n > maxCells {
		return nil, fmt.Errorf("a grid of %d calls: want 1 to %d", n, maxCells)
	}
	r := newRand(seed, forGrid)
	var cells []Cell
	for range repeat {
		from := len(cells)
		for _, c := range contexts {
			for _, g := range outputs {
				cells = append(cells, Cell{c, g})
			}
		}
		round := cells[from:]
		r.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
	}
	return cells, nil
}

// RunGrid makes one direct call after another, one a cell, on a connection that
// an uncounted call has opened: the curve knows nothing of handshakes. The
// number of a result is the index of its cell. Like Run, it is called once.
func (r *Runner) RunGrid(ctx context.Context, cells []Cell) time.Duration {
	c := r.clients[Direct]
	defer c.close()
	ask := func(i int, cell Cell) Result {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		defer cancel()
		return c.call(ctx, i, question{
			model: r.cfg.Model, prompt: Prompt(cell.Context, r.cfg.Seed, uint64(i+1)), outputTokens: cell.Output})
	}
	ask(-1, Cell{1, 1})
	start := time.Now()
	for i, cell := range cells {
		if ctx.Err() != nil {
			break
		}
		r.tell(ask(i, cell))
	}
	return time.Since(start)
}

// PointOf is what a result of RunGrid says of the curve, with the lengths as
// the server counts them; the context is the asked one if it does not say. ok is
// false for a call that did not end well.
func PointOf(r Result, cell Cell) (p Point, ok bool) {
	if r.Outcome != OK || r.OutputTokens == 0 || r.End <= 0 {
		return Point{}, false
	}
	p = Point{Context: float64(r.PromptTokens), Output: float64(r.OutputTokens), Latency: ms(r.End)}
	if r.PromptTokens == 0 {
		p.Context = float64(cell.Context)
	}
	return p, true
}
