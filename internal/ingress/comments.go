// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"sync"
	"time"
)

// comment is an event stream's way to say nothing (WHATWG HTML §9.2.6): parsers skip
// it, and time-outs of the app and of what stands between see bytes.
const comment = ":\n\n"

// A commenter sends comments to an app whose upstream is silent: only between whole
// events, never after the one that ends the stream, and never while the app has still
// to take what it was sent.
type commenter struct {
	e      *exchange
	every  time.Duration
	unsent func() int

	mu      sync.Mutex // held while the app is written to; guards the fields below
	timer   *time.Timer
	waiting bool // for the upstream: all that came has been written
	over    bool
	sent    int64 // bytes
}

// comments starts them where the upstream's settings and the answer allow them; nil
// where not.
func (e *exchange) comments(resp *http.Response, u *Upstream) *commenter {
	if u.Comments <= 0 || !e.watch.Report().Stream || resp.ContentLength >= 0 || !e.watch.AtBoundary() {
		return nil
	}
	c := &commenter{e: e, every: u.Comments, unsent: e.unsent(), waiting: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(c.every, c.fire)
	return c
}

func (c *commenter) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	defer c.timer.Reset(c.every)
	if !c.waiting || c.e.watch.Terminal() || !c.e.watch.AtBoundary() || c.unsent != nil && c.unsent() > 0 {
		return
	}
	if _, err := c.e.w.Write([]byte(comment)); err == nil {
		_ = c.e.rc.Flush() // the next write of the stream tells
		c.sent += int64(len(comment))
	}
}

// busy and idle stand around the writes of the stream itself, and what is shown to the
// observer.
func (c *commenter) busy() {
	if c != nil {
		c.mu.Lock()
		c.waiting = false
		c.mu.Unlock()
	}
}

func (c *commenter) idle() {
	if c != nil {
		c.mu.Lock()
		c.waiting = true
		c.timer.Reset(c.every)
		c.mu.Unlock()
	}
}

// stop ends them, and returns how many bytes the app got that were not the upstream's.
func (c *commenter) stop() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.timer.Stop()
	return c.sent
}
