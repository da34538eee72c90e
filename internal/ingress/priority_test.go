// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"testing"
)

func TestTheClassOfARequest(t *testing.T) {
	up := &Upstream{Priority: "default", Classes: []PathClass{{"/v1/batches*", "batch"}, {"/v1/chat", "interactive"}}}
	tests := []struct {
		name   string
		header string
		caller Caller
		up     *Upstream
		path   string
		want   string // "" = nothing is said
	}{
		{name: "nothing is said", up: up, path: "/v1/x"},
		{name: "the upstream's", up: &Upstream{Priority: "batch"}, path: "/v1/x", want: "batch"},
		{name: "a path", up: up, path: "/v1/chat", want: "interactive"},
		{name: "below a path that has none below", up: up, path: "/v1/chat/x"},
		{name: "below a path", up: up, path: "/v1/batches/b_1/cancel", want: "batch"},
		{name: "the tenant before the path", caller: Caller{Tenant: "a", Class: "interactive"}, up: up, path: "/v1/batches", want: "interactive"},
		{name: "a tenant without a class", caller: Caller{Tenant: "a"}, up: up, path: "/v1/batches", want: "batch"},
		{name: "its own word before the path", header: "interactive", up: up, path: "/v1/batches", want: "interactive"},
		{name: "less than the tenant may", header: "batch", caller: Caller{Tenant: "a", Class: "default"}, up: up, path: "/v1/chat", want: "batch"},
		{name: "more than the tenant may", header: "interactive", caller: Caller{Tenant: "a", Class: "batch"}, up: up, path: "/v1/chat", want: "batch"},
		{name: "a host that is no upstream", path: "/v1/chat"},
		{name: "its own word there", header: "batch", path: "/v1/chat", want: "batch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			if tt.caller != (Caller{}) {
				ctx = WithCaller(ctx, tt.caller)
			}
			r := (&http.Request{Header: http.Header{}}).WithContext(ctx)
			if tt.header != "" {
				r.Header.Set("Warmwire-Priority", tt.header)
			}
			e := &exchange{r: r, rt: route{upstream: tt.up, path: tt.path}}
			got := CallerOf(e.called())
			if got.Class != tt.want || got.Tenant != tt.caller.Tenant {
				t.Errorf("caller %+v, want class %q of tenant %q", got, tt.want, tt.caller.Tenant)
			}
			if tt.want == "" && e.called() != ctx {
				t.Error("a context was made for nothing")
			}
		})
	}
}

func TestAPriorityThatIsNone(t *testing.T) {
	for name, values := range map[string][]string{"unknown": {"urgent"}, "empty": {""}, "twice": {"batch", "batch"}, "upper case": {"Batch"}} {
		if ref := checkPriority(&http.Request{Header: http.Header{"Warmwire-Priority": values}}, ModeHost); ref == nil || ref.status != 400 || ref.code != "bad_priority" {
			t.Errorf("%s: %+v, want 400 bad_priority", name, ref)
		}
	}
	for _, class := range urgency {
		if ref := checkPriority(&http.Request{Header: http.Header{"Warmwire-Priority": {class}}}, ModeHost); ref != nil {
			t.Errorf("%s: %+v", class, ref)
		}
	}
}
