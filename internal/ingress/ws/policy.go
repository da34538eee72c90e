// SPDX-License-Identifier: Apache-2.0

package ws

import "time"

// A Policy decides when one leg is pinged and when its peer is dead. The relay
// calls it from one goroutine at a time. It does no I/O and must not block.
type Policy interface {
	// Next says what to do now: send a ping, give the peer up, or neither until
	// due. heard is when the last byte of any kind came from the peer. A zero due
	// means never. It is asked again at due, or earlier.
	Next(now, heard time.Time) (ping, dead bool, due time.Time)
	// Pong tells that a ping was answered, and how long after it was written.
	Pong(now time.Time, rtt time.Duration)
	// Blocked tells that for the last d the peer could not be heard, or could not
	// be asked, for reasons of our own. Nothing may be held against it for that.
	Blocked(d time.Duration)
}

// A Listener is a Policy that is also told when something was sent to its peer, pings
// apart: somebody may wait for an answer. It is told at most once a second, and asked
// Next at once after it.
type Listener interface {
	Sent(now time.Time)
}

// Fixed is a Policy with constants: after Idle of silence a ping, and after Wait
// without any byte in answer the peer is dead.
type Fixed struct {
	Idle, Wait time.Duration

	asked time.Time // when the ping was sent that is not answered; zero = none
}

// Next implements Policy.
func (f *Fixed) Next(now, heard time.Time) (ping, dead bool, due time.Time) {
	if !f.asked.IsZero() && heard.Before(f.asked) {
		due = f.asked.Add(f.Wait)
		return false, !now.Before(due), due
	}
	f.asked = time.Time{}
	if due = heard.Add(f.Idle); now.Before(due) {
		return false, false, due
	}
	f.asked = now
	return true, false, now.Add(f.Wait)
}

// Pong implements Policy: any byte is life, and heard has told that already.
func (f *Fixed) Pong(time.Time, time.Duration) {}

// Blocked implements Policy.
func (f *Fixed) Blocked(d time.Duration) {
	if !f.asked.IsZero() {
		f.asked = f.asked.Add(d)
	}
}
