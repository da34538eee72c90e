// SPDX-License-Identifier: Apache-2.0

package ingress

import "testing"

func TestCallerOfAContext(t *testing.T) {
	if got := CallerOf(t.Context()); got != (Caller{}) {
		t.Errorf("CallerOf a context without one = %+v, want none", got)
	}
	want := Caller{Tenant: "gold", Class: "interactive", Weight: 3}
	if got := CallerOf(WithCaller(t.Context(), want)); got != want {
		t.Errorf("CallerOf = %+v, want %+v", got, want)
	}
}
