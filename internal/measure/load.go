// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"math/rand/v2"
	"strings"
	"time"
)

// newRand returns the generator of one purpose, so that the arrivals of a seed
// do not depend on what else draws numbers.
func newRand(seed, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }

const (
	forArrivals uint64 = iota + 1
	forPrompts
	forBootstrap
	forGrid
)

// Poisson calls yield with the times of arrivals, counted from the start, that
// come at rate a second independently of each other, until it returns false.
// One seed gives one sequence.
func Poisson(rate float64, seed uint64) func(yield func(time.Duration) bool) {
	return func(yield func(time.Duration) bool) {
		r, at := newRand(seed, forArrivals), 0.0
		for {
			at += r.ExpFloat64() / rate
			if !yield(time.Duration(at * float64(time.Second))) {
				return
			}
		}
	}
}

// words are frequent enough to be one token each, with the space before them,
// in the tokenizers of the well-known models.
var words = strings.Fields("the of and to in is it you that was for on are with as they be at one have this from by hot word but what some can out other were all there when up use your how said an each she which do their time if will way about many then them write would like so these her long make thing see him two has look more day could go come did number sound no most people my over know water than call first who may down side been now find")

// Prompt is a text of about n tokens. Prompts of different numbers share no
// beginning, so that a prefix cache of the server cannot shorten the answer.
func Prompt(n int, seed, number uint64) string {
	r := newRand(seed, forPrompts+number<<8)
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.String()
}
