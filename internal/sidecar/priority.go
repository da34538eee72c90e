// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"net/http"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/transport/semantics"
)

// classes are what the three priorities are called by those who know them.
var classes = map[string]struct {
	way    semantics.Class
	buffer bufferctl.Class
}{
	"interactive": {semantics.Interactive, bufferctl.Interactive},
	"default":     {semantics.Default, bufferctl.Default},
	"":            {semantics.Default, bufferctl.Default},
	"batch":       {semantics.Batch, bufferctl.Batch},
}

// classOf is how urgent a request is for those who send it.
func classOf(req *http.Request) semantics.Class {
	return classes[ingress.CallerOf(req.Context()).Class].way
}

// roomClass is the same for the memory budget.
func roomClass(ctx context.Context) bufferctl.Class {
	return classes[ingress.CallerOf(ctx).Class].buffer
}

// pathClasses are the upstream's rules as ingress takes them.
func pathClasses(u config.Upstream) []ingress.PathClass {
	out := make([]ingress.PathClass, len(u.Classes))
	for i, r := range u.Classes {
		out[i] = ingress.PathClass(r)
	}
	return out
}
