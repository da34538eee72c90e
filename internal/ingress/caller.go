// SPDX-License-Identifier: Apache-2.0

package ingress

import "context"

// A Caller is who sends a request, as far as that is known. The zero value is
// nobody in particular.
type Caller struct {
	Tenant string // its name in the configuration; "" = none
	// Class is interactive, default or batch: that of the tenant on the way in, "" if it
	// has none, and that of the request on the way out, where "" is default.
	Class  string
	Weight int // its share beside other tenants of the class; 0 = 1
}

type callerKey struct{}

// WithCaller returns a context that carries c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller that ctx carries.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
