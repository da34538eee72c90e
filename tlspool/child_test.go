// SPDX-License-Identifier: Apache-2.0

package tlspool

const childVariable = "TLSPOOL_TEST_CHILD"

// children are what this binary does when a test starts it again.
var children = map[string]func() int{
	"diskFull": diskFull,
}
