// SPDX-License-Identifier: Apache-2.0

//go:build unix

package metrics

import (
	"os"
	"testing"
)

func TestDescriptorsAreCounted(t *testing.T) {
	before := fdsInUse()
	if before < 3 || fdsLimit() < before {
		t.Fatalf("%v of %v in use", before, fdsLimit())
	}
	for range 5 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if got := fdsInUse(); got < before+5 {
		t.Errorf("%v in use after opening 5, %v before", got, before)
	}
}
