// SPDX-License-Identifier: Apache-2.0

package bufferctl

// An Account is the bytes of the Budget that one stream holds. It is not safe
// for concurrent use: the stream's owner guards it. The zero Account belongs to no
// Budget and has no bound.
type Account struct {
	b      *Budget
	floor  int64 // what it was opened with, kept until Close
	held   int64
	closed bool
}

// Open returns an Account that takes over held bytes which are taken already, by
// [Budget.Admit] for example. They are its floor: it holds them until it is
// closed and can use them again and again, so a stream moves on in a full budget, too.
func (b *Budget) Open(held int64) Account {
	return Account{b: b, floor: held, held: held}
}

// Held is the number of bytes that it holds now.
func (a *Account) Held() int64 { return a.held }

// Cap is what it may hold now: [Budget.StreamCap], but never less than its floor.
func (a *Account) Cap() int64 { return max(a.b.StreamCap(), a.floor) }

// Resize makes the Account hold want bytes, or as near as it can, and returns what it
// holds. Shrinking always succeeds, down to the floor. It grows no further than
// [Account.Cap], and what it adds above Config.Start or Config.Floor comes from what
// is free below the budget's low or high watermark: the last tenth is for new streams.
func (a *Account) Resize(want int64) int64 {
	want = max(want, a.floor)
	switch {
	case a.closed: // whoever comes late gets nothing, or nobody would give it back
	case want < a.held:
		less := a.held - want
		a.held = want
		a.b.Give(less)
	case want > a.held && a.b == nil:
		a.held = want
	case want > a.held:
		a.grow(min(want, a.Cap()))
	}
	return a.held
}

func (a *Account) grow(want int64) {
	limit := a.b.limit.Load()
	a.growTo(min(want, a.b.floor), limit)
	a.growTo(min(want, a.b.start), highWatermark(limit))
	a.growTo(want, lowWatermark(limit))
}

func (a *Account) growTo(want, ceiling int64) {
	if more := want - a.held; more > 0 {
		a.held += a.b.takeBelow(0, more, ceiling)
	}
}

// Close gives everything back; from then on the Account holds nothing. It may be
// called more than once.
func (a *Account) Close() {
	if a.held > 0 {
		a.b.Give(a.held)
	}
	a.held, a.floor, a.closed = 0, 0, true
}
