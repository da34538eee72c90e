// SPDX-License-Identifier: Apache-2.0

package accesslog

// Places is for how many records there is memory.
func (l *Log) Places() int { return l.ring.Places() }

// Queued is how many records wait.
func (l *Log) Queued() int { return l.ring.Len() }

// Writer returns a func that writes what waits, instead of Run.
func (l *Log) Writer() func() {
	w := newWriter(l)
	w.takeOutput()
	return func() {
		for w.write(false) {
		}
	}
}
