// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/tenant"
)

// An uploadBody streams the app's request body to the way out. It never holds
// a copy: what the upstream does not take stays in the app's connection.
type uploadBody struct {
	r         *http.Request // of the app
	limit     int64         // bytes; 0 = none
	use       *tenant.Use   // charged for them; nil = there are no tenants
	read      atomic.Int64
	continued func()      // asks the app for the body (100 Continue), once
	fail      func(error) // cancels the round trip with a cause
	trailer   http.Header // of the outgoing request: announced names
	once      sync.Once
	whole     atomic.Bool  // its end was read
	lost      atomic.Int32 // trailer fields that could not be sent

	reading sync.Mutex // an HTTP/2 body bears one reader
	over    bool       // guarded by reading: the answer is whole, and linger reads
}

func (b *uploadBody) Read(p []byte) (int, error) {
	b.once.Do(b.continued)
	n, err := b.next(p)
	total := b.read.Add(int64(n))
	if b.limit > 0 && total > b.limit {
		b.fail(errBodyLimit)
		return 0, errBodyLimit
	}
	if b.use != nil {
		if over := b.use.Uploaded(int64(n), time.Now()); over != nil {
			err := &overQuota{*over}
			b.fail(err)
			return 0, err
		}
	}
	switch {
	case err == io.EOF:
		b.whole.Store(true)
		b.copyTrailer()
	case err != nil && !errors.Is(err, http.ErrBodyReadAfterClose):
		err = errors.Join(errUploadCut, err)
		b.fail(errUploadCut)
	}
	return n, err
}

func (b *uploadBody) next(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.over {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.r.Body.Read(p)
}

// rest reads what nobody else gets any more.
func (b *uploadBody) rest(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.over = true
	return b.r.Body.Read(p)
}

// Close is the way out's, which may close the body of a request that was
// answered early. The app's body is the server's to close.
func (b *uploadBody) Close() error { return nil }

// copyTrailer fills the announced trailers of the outgoing request; a field that
// was not announced cannot be sent any more and is counted. Trailers never
// become header fields (RFC 9110 §6.5.1).
func (b *uploadBody) copyTrailer() {
	for name, values := range b.r.Trailer {
		if len(values) == 0 {
			continue
		}
		if _, announced := b.trailer[name]; announced {
			b.trailer[name] = values
		} else {
			b.lost.Add(1)
		}
	}
}

// announcedTrailer returns the map the way out needs before the body is read.
func announcedTrailer(r *http.Request, withoutKeys bool) http.Header {
	var t http.Header
	for name := range r.Trailer {
		if trailerForbidden(name) || withoutKeys && slices.Contains(keyHeaders[:], name) {
			continue
		}
		if t == nil {
			t = make(http.Header)
		}
		t[name] = nil
	}
	return t
}
