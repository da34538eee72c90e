// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"net/http"
	"sync"
)

// A call is what is remembered of one request over all its attempts: it travels in the
// context, through layers that know nothing of it. A nil call remembers nothing.
type call struct {
	context.Context
	mu   sync.Mutex // guards the fields below
	went []*endpoint
	read *endpoint // whose answer is being read
}

type callKey struct{}

// Value returns the call itself for its key.
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// attempts are the endpoints that have had one. The list only grows.
func (c *call) attempts() []*endpoint {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.went
}

func (c *call) goes(e *endpoint) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.went = append(c.went, e)
	c.mu.Unlock()
}

// reads notes that the answer of e is the one that counts.
func (c *call) reads(e *endpoint) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.read = e
	c.mu.Unlock()
}

// holder is the endpoint whose answer is being read, nil if there is none yet.
func (c *call) holder() *endpoint {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read
}

// Calls returns a layer that keeps the attempts of one request together. It stands above
// whatever makes attempts.
func Calls(next http.RoundTripper) http.RoundTripper { return calls{next} }

type calls struct{ next http.RoundTripper }

func (c calls) RoundTrip(req *http.Request) (*http.Response, error) {
	return c.next.RoundTrip(req.WithContext(&call{Context: req.Context()}))
}
