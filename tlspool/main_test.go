// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if run := children[os.Getenv(childVariable)]; run != nil { // this process is a child of a test
		os.Exit(run())
	}
	goleak.VerifyTestMain(m)
}
