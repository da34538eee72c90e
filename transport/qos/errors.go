// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"fmt"
	"net/http"
	"time"
)

// A Reason says why a request was not let in. The set is closed: it is a metric label.
type Reason string

// The reasons.
const (
	QueueFull    Reason = "upstream_limit_queue_full"    // too many wait
	QueueTimeout Reason = "upstream_limit_queue_timeout" // it has waited too long
	Paced        Reason = "upstream_limit_paced"         // the upstream's own limit is used up for longer than it would wait
	OverShare    Reason = "tenant_over_share"            // its tenant has more than its part of a full queue
)

// Limits of what a refused request is told to wait: less makes storms, more is not known.
const (
	leastAfter = time.Second
	mostAfter  = time.Minute
)

// An Error says that a request was not let in. Nothing of it was sent.
type Error struct {
	Reason Reason
	after  time.Duration
}

func (e *Error) Error() string {
	switch e.Reason {
	case QueueFull:
		return "too many requests wait for the upstream (limits: limits.queue, limits.concurrency)"
	case QueueTimeout:
		return "the upstream had no room for the request in time (limits: limits.queue_timeout, limits.concurrency)"
	case Paced:
		return fmt.Sprintf("the upstream's own rate limit is used up for %v (limits: limits.pace, limits.queue_timeout)", e.after.Round(time.Millisecond))
	case OverShare:
		return "more requests of this tenant wait than its part of the queue (limit: limits.queue)"
	}
	return string(e.Reason)
}

// Phase is queue.
func (e *Error) Phase() string { return "queue" }

// Code is the stable code of the failure.
func (e *Error) Code() string { return string(e.Reason) }

// Timeout says whether a limit passed.
func (e *Error) Timeout() bool { return e.Reason == QueueTimeout }

// RequestSent is false.
func (e *Error) RequestSent() bool { return false }

// Status is what the app is answered with: 429 if it is its tenant's own doing.
func (e *Error) Status() int {
	if e.Reason == OverShare {
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}

// RetryAfter is when there may be room, as far as that is known.
func (e *Error) RetryAfter() time.Duration { return min(max(e.after, leastAfter), mostAfter) }
