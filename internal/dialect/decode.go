// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"bufio"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

const (
	maxDecoded = 4 << 20 // decoded bytes that one call may cost
	maxWindow  = 8 << 20 // RFC 8878 §3.1.1.1.2 asks decoders for 8 MiB
)

// decoder turns pushed bytes into pulled ones: it is a coroutine that stops
// whenever its input is used up, so nothing is queued and nothing runs beside.
type decoder struct {
	w       *Watcher
	coding  string
	in      []byte
	eof     bool
	allowed int
	yield   func(struct{}) bool
}

// Read gives the decoder the bytes at hand and parks it when there are none.
func (d *decoder) Read(p []byte) (int, error) {
	for len(d.in) == 0 {
		if d.eof || !d.yield(struct{}{}) {
			d.eof = true
			return 0, io.EOF
		}
	}
	n := copy(p, d.in)
	d.in = d.in[n:]
	return n, nil
}

func (d *decoder) run(yield func(struct{}) bool) {
	d.yield = yield
	defer func() {
		if recover() != nil {
			d.w.silence("decoder failed")
		}
	}()
	r, done, err := d.open()
	if err != nil {
		d.fail()
		return
	}
	defer done()
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		d.allowed -= n
		if d.allowed < 0 {
			d.w.silence("decoded too much")
			return
		}
		d.w.feed(buf[:n])
		if err != nil {
			if err != io.EOF {
				d.fail()
			}
			return
		}
	}
}

// fail is silent about an end that comes early: the body was cut.
func (d *decoder) fail() {
	if !d.eof {
		d.w.silence("corrupt content coding")
	}
}

func (d *decoder) open() (io.Reader, func(), error) {
	none := func() {}
	switch d.coding {
	case "zstd":
		z, err := zstd.NewReader(d, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, none, err
		}
		return z, z.Close, nil
	case "br":
		return brotli.NewReader(d), none, nil
	case "deflate":
		// RFC 9110 §8.4.1.2: zlib is meant, bare deflate is met.
		b := bufio.NewReader(d)
		h, err := b.Peek(2)
		if err != nil {
			return nil, none, err
		}
		if h[0]&0x0f != 8 || (int(h[0])<<8|int(h[1]))%31 != 0 {
			return flate.NewReader(b), none, nil
		}
		z, err := zlib.NewReader(b)
		return z, none, err
	}
	z, err := gzip.NewReader(d)
	return z, none, err
}
