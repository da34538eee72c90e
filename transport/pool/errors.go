// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
	"time"
)

// An Error says that a request found no connection.
type Error struct {
	kind string
	text string
	full bool // at once, no limit passed
}

// errClosed is what requests get of a pool that is closed: its owner has another
// one by then, or is ending.
var errClosed = &Error{kind: "upstream_closed", text: "the pool of connections is closed", full: true}

// Closed says whether err is that of a closed pool.
func Closed(err error) bool { return errors.Is(err, errClosed) }

func queueError(full bool, cfg Config) *Error {
	e := &Error{full: full}
	if full {
		e.kind, e.text = "upstream_queue_full", fmt.Sprintf("%d requests wait for a connection to the upstream already", cfg.QueueLimit)
	} else {
		e.kind, e.text = "upstream_queue_timeout", fmt.Sprintf("no connection to the upstream had room for the request within %v", cfg.QueueTimeout)
	}
	return e
}

func (e *Error) Error() string {
	if e == errClosed {
		return e.text
	}
	return e.text + " (limits: pool.max_connections, pool.max_h1_connections, pool.max_streams)"
}

// Phase is queue.
func (e *Error) Phase() string { return "queue" }

// Code is the stable code of the failure.
func (e *Error) Code() string { return e.kind }

// Timeout says whether a limit passed.
func (e *Error) Timeout() bool { return !e.full }

// RequestSent is false: there was no connection.
func (e *Error) RequestSent() bool { return false }

// RetryAfter is when there may be room again.
func (e *Error) RetryAfter() time.Duration { return time.Second }
