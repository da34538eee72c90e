// SPDX-License-Identifier: Apache-2.0

package semantics

import (
	"net/http"
	"testing"
)

func TestOriginForm(t *testing.T) {
	tests := []struct {
		raw, want string
		ok        bool
	}{
		{"/", "/", true},
		{"*", "*", true},
		{"//a%2F/../b?x=/?#y", "//a%2F/../b?x=/?#y", true},
		{"/\xc3\xa9", "/\xc3\xa9", true},
		{"https://api.test/v1?x", "/v1?x", true},
		{"https://api.test", "", false},
		{"v1", "", false},
		{"", "", false},
		{"/a b", "", false},
		{"/a\x00", "", false},
	}
	for _, tt := range tests {
		if got, err := originForm(tt.raw); got != tt.want && err == nil || (err == nil) != tt.ok {
			t.Errorf("originForm(%q) = %q, %v", tt.raw, got, err)
		}
	}
}

// TestTheInnermostClassCounts: the default class too stands over what a context had.
func TestTheInnermostClassCounts(t *testing.T) {
	plain := t.Context()
	if WithClass(plain, Default) != plain {
		t.Error("a context without a class gets one that needs no word")
	}
	for _, outer := range []Class{Interactive, Default, Batch} {
		for _, inner := range []Class{Interactive, Default, Batch} {
			req, err := http.NewRequestWithContext(WithClass(WithClass(plain, outer), inner), http.MethodGet, "/", nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := ClassOf(req, nil); got != inner {
				t.Errorf("class %d within %d is %d", inner, outer, got)
			}
		}
	}
}
