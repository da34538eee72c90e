// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/netlab"
)

func TestMain(m *testing.M) {
	if netlab.Main() { // this process is a child of a lab
		return
	}
	goleak.VerifyTestMain(m)
}
