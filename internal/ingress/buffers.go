// SPDX-License-Identifier: Apache-2.0

package ingress

import "sync"

// A stream reads with the small buffer, which holds many tokens, until a read
// fills it; then with the large one, which holds a TLS record. An idle stream
// keeps the small one only.
const (
	smallBufferBytes = 4 << 10
	largeBufferBytes = 16 << 10
)

// buffers are the pools of both.
type buffers struct{ small, large sync.Pool }

func (p *buffers) init() {
	p.small.New = func() any { return new([smallBufferBytes]byte) }
	p.large.New = func() any { return new([largeBufferBytes]byte) }
}

// A readBuffer is what one stream reads with.
type readBuffer struct {
	b     []byte
	pool  *buffers
	small *[smallBufferBytes]byte
	large *[largeBufferBytes]byte
}

func (p *buffers) reader() readBuffer {
	r := readBuffer{pool: p, small: p.small.Get().(*[smallBufferBytes]byte)}
	r.b = r.small[:]
	return r
}

// filled is told how much a read returned, and grows the buffer if that was all.
func (r *readBuffer) filled(n int) {
	if n == smallBufferBytes && r.large == nil {
		r.large = r.pool.large.Get().(*[largeBufferBytes]byte)
		r.b = r.large[:]
	}
}

func (r *readBuffer) release() {
	r.pool.small.Put(r.small)
	if r.large != nil {
		r.pool.large.Put(r.large)
	}
}
