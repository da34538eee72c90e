// SPDX-License-Identifier: Apache-2.0

package accesslog

// Places is for how many records there is memory.
func (l *Log) Places() int { return l.ring.Places() }
