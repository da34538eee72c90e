// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"cmp"
	"fmt"
	"time"
)

// A Class is how urgent a request is.
type Class uint8

// The classes, most urgent first.
const (
	Interactive Class = iota // somebody waits for every token
	Default
	Batch // nobody waits
	numClasses
)

// Classes is the number of classes.
const Classes = int(numClasses)

// String is the class's name in the configuration and in metrics.
func (c Class) String() string { return [...]string{"interactive", "default", "batch"}[min(c, Batch)] }

// A Ticket says whose request it is and how urgent.
type Ticket struct {
	Class  Class
	Tenant string // "" = nobody in particular
	Weight int    // beside other tenants of the class; 0 = 1
}

// Share is by how many more urgent requests a class that waits is passed before it has
// its turn: a less urgent one gets at least a ninth of the starts. As in bufferctl.
const Share = 8

// Config is what a gate keeps to. The zero value lets everything pass.
type Config struct {
	Limit        int           // requests at once, the most of them if Adaptive; 0 = no limit, or 1000 if Adaptive
	Adaptive     bool          // learn how many the upstream bears
	Floor        int           // what is learned is never less; 0 = 4, or Limit if that is less
	Pace         bool          // keep to what its answers say of its limits
	Queue        int           // requests that wait; 0 = 1000
	QueueTimeout time.Duration // of each; 0 = 10 s

	OnStart  func(t Ticket, waited time.Duration)
	OnRefuse func(t Ticket, r Reason)
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	if c.Adaptive {
		c.Limit = cmp.Or(c.Limit, 1000)
		c.Floor = cmp.Or(c.Floor, min(4, c.Limit))
	}
	c.Queue = cmp.Or(c.Queue, 1000)
	c.QueueTimeout = cmp.Or(c.QueueTimeout, 10*time.Second)
	if c.OnStart == nil {
		c.OnStart = func(Ticket, time.Duration) {}
	}
	if c.OnRefuse == nil {
		c.OnRefuse = func(Ticket, Reason) {}
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	d := c.WithDefaults()
	switch {
	case c.Limit < 0 || c.Floor < 0 || c.Queue < 0 || c.QueueTimeout < 0:
		return fmt.Errorf("qos: negative limit %d, floor %d, queue %d or time-out %v", c.Limit, c.Floor, c.Queue, c.QueueTimeout)
	case d.Adaptive && d.Floor > d.Limit:
		return fmt.Errorf("qos: the floor %d is above the limit %d", d.Floor, d.Limit)
	}
	return nil
}
