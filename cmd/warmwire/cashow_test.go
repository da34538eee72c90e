// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/intercept/ca"
)

func TestTheEndOfAnAuthorityIsWarnedOf(t *testing.T) {
	const day = 24 * time.Hour
	end := time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC)
	s := ca.State{Role: ca.Active, NotBefore: end.Add(-700 * day), NotAfter: end}
	for name, tt := range map[string]struct {
		now  time.Time
		want string
	}{
		"long before": {end.Add(-61 * day), ""},
		"soon":        {end.Add(-10*day - time.Hour), "expires in 10 days: `warmwire ca rotate`"},
		"the end":     {end, "has expired: `warmwire ca rotate`"},
		"too early":   {s.NotBefore.Add(-1), "clock"},
	} {
		if got := caWarning(s, tt.now); got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	s.Role = ca.Old
	if got := caWarning(s, end); got != "" {
		t.Errorf("one that has signed before: %q", got)
	}
}
