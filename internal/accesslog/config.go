// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"
)

const (
	defaultCapacity     = 4096 // under a second of 5000 requests/s, all of them in full
	defaultFlush        = 2 * time.Second
	defaultFailureRate  = 10  // guess: enough to see what fails, 36,000 lines in an hour of outage
	defaultFailureBurst = 100 // guess: the beginning of an outage in full
)

// A Format is how lines are encoded.
type Format int

// The formats. Text and JSON have a line a record, as package log/slog writes
// them; MessagePack has a map a record and nothing between the maps.
const (
	Text Format = iota
	JSON
	MessagePack
)

// Config is what is logged, how and where to.
type Config struct {
	Format Format
	File   string // path; "" = the writer that New is given

	Sample   float64         // share of the requests that are written in full, from 0 to 1; 0 = none
	Statuses map[int]float64 // share by the first digit of the status, instead of Sample
	Summary  time.Duration   // between summaries; 0 = none
	Level    slog.Leveler    // lines below it are not written; nil = all are

	FailureRate  float64       // failures written beyond their share, a second, for each upstream and outcome; 0 = 10
	FailureBurst int           // of them at once; 0 = 100
	Capacity     int           // records that wait for the writer; 0 = 4096. Fixed by New
	FlushTimeout time.Duration // for writing out what waits at the end; 0 = 2 s. Fixed by New
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.FailureRate = cmp.Or(c.FailureRate, defaultFailureRate)
	c.FailureBurst = cmp.Or(c.FailureBurst, defaultFailureBurst)
	c.Capacity = cmp.Or(c.Capacity, defaultCapacity)
	c.FlushTimeout = cmp.Or(c.FlushTimeout, defaultFlush)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.Capacity < 0 || c.FlushTimeout < 0 || c.Summary < 0 || c.FailureBurst < 0 || !(c.FailureRate >= 0) {
		return fmt.Errorf("accesslog: negative capacity %d, flush timeout %v, summary %v or failure rate %v, burst %d",
			c.Capacity, c.FlushTimeout, c.Summary, c.FailureRate, c.FailureBurst)
	}
	if c.Format < Text || c.Format > MessagePack {
		return fmt.Errorf("accesslog: unknown format %d", c.Format)
	}
	for class, share := range c.Statuses {
		if class < 1 || class > 5 {
			return fmt.Errorf("accesslog: no status begins with %d", class)
		}
		if err := checkShare(share); err != nil {
			return err
		}
	}
	return checkShare(c.Sample)
}

func checkShare(s float64) error {
	if !(s >= 0 && s <= 1) { // written so that NaN is refused too
		return fmt.Errorf("accesslog: %v is no share from 0 to 1", s)
	}
	return nil
}
