// SPDX-License-Identifier: Apache-2.0

package semantics

import (
	"context"
	"net/http"
	"strings"
)

// A Class is how urgent a request is.
type Class uint8

// The classes, most urgent first, and their number.
const (
	Interactive Class = iota // somebody waits for every token
	Default
	Batch // nobody waits
	Classes
)

type classKey struct{}

// WithClass returns a context whose requests are of that class. Without it they
// are [Default].
func WithClass(ctx context.Context, class Class) context.Context {
	if class == Default && ctx.Value(classKey{}) == nil {
		return ctx
	}
	return context.WithValue(ctx, classKey{}, class)
}

// ClassOf is the class of a request: what by says of it, or its context if by is nil.
func ClassOf(req *http.Request, by func(*http.Request) Class) Class {
	class := Default
	if by != nil {
		class = by(req)
	} else if v, ok := req.Context().Value(classKey{}).(Class); ok {
		class = v
	}
	return min(class, Batch)
}

// urgencies are the classes' priority fields (RFC 9218 §4). A model's answer is
// of use piece by piece, so it is incremental. The default class is the default
// urgency, which needs no word.
var urgencies = [Classes]string{Interactive: "u=1, i", Default: "", Batch: "u=6"}

// Urgency is the class's priority field; "" needs none.
func (c Class) Urgency() string { return urgencies[c] }

// PriorityField is the app's own priority.
func PriorityField(req *http.Request) string {
	if v := req.Header["Priority"]; len(v) > 0 {
		return v[0]
	}
	for k, v := range req.Header {
		if len(v) > 0 && strings.EqualFold(k, "priority") {
			return v[0]
		}
	}
	return ""
}
