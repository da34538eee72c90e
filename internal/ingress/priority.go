// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"net/http"
	"slices"
	"strings"
)

// priorityHeader is how a request says its own class. It is not passed on.
const priorityHeader = "Warmwire-Priority"

// defaultClass is that of a request of which nothing is said.
const defaultClass = "default"

// urgency is the order of the classes, most urgent first.
var urgency = []string{"interactive", defaultClass, "batch"}

// A PathClass gives requests to a path their class.
type PathClass struct {
	Path  string // a * at its end stands for anything
	Class string
}

func (p PathClass) fits(path string) bool {
	if prefix, wide := strings.CutSuffix(p.Path, "*"); wide {
		return strings.HasPrefix(path, prefix)
	}
	return path == p.Path
}

// checkPriority refuses a class that there is none of: the app means something by it
// that would not happen.
func checkPriority(r *http.Request, m Mode) *refusal {
	said, there := r.Header[priorityHeader]
	if !there || len(said) == 1 && slices.Contains(urgency, said[0]) {
		return nil
	}
	return &refusal{http.StatusBadRequest, "bad_priority", priorityHeader + " is one of " + strings.Join(urgency, ", ") + ", once", m}
}

// classOf decides how urgent a request is: what it says itself, its tenant's class,
// that of its path, that of its upstream. A tenant's class is also the most that its
// requests may claim: a limit that they could lift would keep nobody apart.
func (e *exchange) classOf(c Caller) string {
	if said := e.r.Header[priorityHeader]; len(said) == 1 {
		if c.Class != "" && slices.Index(urgency, said[0]) < slices.Index(urgency, c.Class) {
			return c.Class
		}
		return said[0]
	}
	if c.Class != "" {
		return c.Class
	}
	u := e.rt.upstream
	if u == nil {
		return defaultClass
	}
	for _, p := range u.Classes {
		if p.fits(e.rt.path) {
			return p.Class
		}
	}
	return u.Priority
}

// called returns the context of the app's request with its caller, whose class is the
// request's from here on. Nothing is added for a request of which nothing is said.
func (e *exchange) called() context.Context {
	ctx := e.r.Context()
	c := CallerOf(ctx)
	class := e.classOf(c)
	if class == c.Class || c == (Caller{}) && (class == "" || class == defaultClass) {
		return ctx
	}
	c.Class = class
	return WithCaller(ctx, c)
}
