// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"strings"
	"testing"
)

// TestPinsThatBeginWithASlash compares the forms of a pin whose Base64 begins with one, as
// that of every 64th key does.
func TestPinsThatBeginWithASlash(t *testing.T) {
	for _, first := range []string{"/", "A", "//", "/A"} {
		text := first + strings.Repeat("b", 43-len(first))
		for _, form := range []string{"sha256/" + text + "=", "sha256/" + text, "sha256//" + text + "=", "sha256//" + text} {
			if got := barePin(form); got != text {
				t.Errorf("%s: %s, want %s", form, got, text)
			}
		}
	}
}
