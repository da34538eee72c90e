// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"strings"
	"testing"
)

func TestTraceOf(t *testing.T) {
	const id, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	const whole = "00-" + id + "-" + parent + "-01"
	none, sampled := Trace{}, Trace{ID: id, Parent: parent, Flags: 1}
	for _, tt := range []struct {
		name string
		send []string
		want Trace
	}{
		{"sampled", []string{whole}, sampled},
		{"not sampled", []string{whole[:53] + "00"}, Trace{ID: id, Parent: parent}},
		{"a random id", []string{whole[:53] + "03"}, Trace{ID: id, Parent: parent, Flags: 3}},
		{"flags of the future", []string{whole[:53] + "f9"}, sampled},
		{"a later version", []string{"cc" + whole[2:]}, sampled},
		{"a later version with more", []string{"cc" + whole[2:] + "-what-ever"}, sampled},
		{"a later version with more to the flags", []string{"cc" + whole[2:] + "what"}, none},
		{"version 00 with more", []string{whole + "-"}, none},
		{"version ff", []string{"ff" + whole[2:]}, none},
		{"no version", []string{"0x" + whole[2:]}, none},
		{"no trace", []string{"00-" + strings.Repeat("0", 32) + whole[35:]}, none},
		{"no parent", []string{whole[:36] + strings.Repeat("0", 16) + whole[52:]}, none},
		{"capitals", []string{strings.ToUpper(whole)}, none},
		{"flags that are none", []string{whole[:53] + "0g"}, none},
		{"short", []string{whole[:54]}, none},
		{"other dashes", []string{strings.ReplaceAll(whole, "-", "_")}, none},
		{"two of them", []string{whole, whole}, none},
		{"nothing", nil, none},
	} {
		if got := traceOf(http.Header{"Traceparent": tt.send}); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func FuzzTraceOf(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x")
	f.Fuzz(func(t *testing.T, v string) {
		got := traceOf(http.Header{"Traceparent": {v}})
		if got == (Trace{}) {
			return
		}
		if len(got.ID) != 32 || len(got.Parent) != 16 || !isID(got.ID) || !isID(got.Parent) || got.Flags > 3 || !strings.HasPrefix(v[3:], got.ID+"-"+got.Parent) {
			t.Errorf("%q is read as %+v", v, got)
		}
	})
}

func TestSpanIDsAreIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newSpanID()
		if len(id) != 16 || !isID(id) || seen[id] {
			t.Fatalf("%q", id)
		}
		seen[id] = true
	}
}
