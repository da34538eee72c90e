// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Floor is how many attempts beyond the first are allowed in ten seconds however
// few the calls are: enough that a lone call may use its three attempts, and a
// second one too. A guess.
const Floor = 4

// Config is what is tried again, and how often. The zero value is the default.
type Config struct {
	MaxAttempts int     // of one call, in all; 1 = never again; 0 means 3
	Budget      float64 // attempts beyond the first, as a share of the calls; 0 means 0.2, negative none
	Statuses    []int   // answers that are tried again; none by default
	Resets      bool    // try again when the connection broke after the request and before a byte of the answer

	BaseDelay time.Duration // the widest first wait; doubled for each attempt; 0 means 100 ms
	MaxDelay  time.Duration // the longest wait that is waited; 0 means 5 s

	ReplayBody int64 // bytes of a body that are kept until its answer's head; 0 means 1 MiB, negative none

	Hedge       bool    // a second attempt beside one whose head is later than the learned 95th percentile
	HedgeBudget float64 // hedges, as a share of the calls; 0 means 0.05

	// Take asks the process's byte budget for n bytes of kept body, Give returns
	// them. Neither may block. nil = no budget. Where there is no room the body is
	// not kept, and the request goes on without being replayable.
	Take func(n int64) bool
	Give func(n int64)

	OnAttempt func(Decision) // is told of every decision; nil = nobody. It must not block.
	Rand      func() float64 // in [0, 1); nil means math/rand/v2
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.Budget = max(0, cmp.Or(c.Budget, 0.2))
	c.BaseDelay = cmp.Or(c.BaseDelay, 100*time.Millisecond)
	c.MaxDelay = cmp.Or(c.MaxDelay, 5*time.Second)
	c.ReplayBody = max(0, cmp.Or(c.ReplayBody, 1<<20))
	c.HedgeBudget = cmp.Or(c.HedgeBudget, 0.05)
	if c.Take == nil || c.Give == nil {
		c.Take, c.Give = func(int64) bool { return true }, func(int64) {}
	}
	if c.OnAttempt == nil {
		c.OnAttempt = func(Decision) {}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	switch {
	case c.MaxAttempts < 0 || c.MaxAttempts > 10:
		return fmt.Errorf("retry: max_attempts is %d, want 1 to 10", c.MaxAttempts)
	case c.Budget > 1, math.IsNaN(c.Budget):
		return fmt.Errorf("retry: budget is %v, want a share of the calls from 0 to 1", c.Budget)
	case c.HedgeBudget < 0, c.HedgeBudget > 1, math.IsNaN(c.HedgeBudget):
		return fmt.Errorf("retry: hedge_budget is %v, want a share of the calls from 0 to 1", c.HedgeBudget)
	case c.BaseDelay < 0 || c.MaxDelay < 0:
		return fmt.Errorf("retry: base_delay %v or max_delay %v is negative", c.BaseDelay, c.MaxDelay)
	case c.WithDefaults().BaseDelay > c.WithDefaults().MaxDelay:
		return fmt.Errorf("retry: base_delay %v is longer than max_delay %v", c.WithDefaults().BaseDelay, c.WithDefaults().MaxDelay)
	case (c.Take == nil) != (c.Give == nil):
		return errors.New("retry: Take and Give belong together")
	}
	for _, status := range c.Statuses {
		if status < 400 || status > 599 {
			return fmt.Errorf("retry: statuses has %d, want statuses of errors, 400 to 599", status)
		}
	}
	return nil
}
