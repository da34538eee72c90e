// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"io"
	"sync/atomic"
)

// A trailing body calls end when it is at its end, and counts its Closes.
type trailing struct {
	r      io.Reader
	end    func()
	closed atomic.Int32
}

func (b *trailing) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF && b.end != nil {
		b.end()
	}
	return n, err
}

func (b *trailing) Close() error {
	b.closed.Add(1)
	return nil
}
