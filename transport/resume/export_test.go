// SPDX-License-Identifier: Apache-2.0

package resume

// Members shows members to tests.
func Members(data []byte) (ended bool, sequence int64, numbered bool) {
	e := members(data)
	return e.kind == "end", e.sequence, e.numbered
}
