// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/warmwire/warmwire/transport/retry"
)

// noise is n bytes that are not alike anywhere.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// ledger is a byte budget.
type ledger struct {
	room, held atomic.Int64
}

func (l *ledger) take(n int64) bool {
	if l.room.Add(-n) < 0 {
		l.room.Add(n)
		return false
	}
	l.held.Add(n)
	return true
}

func (l *ledger) give(n int64) { l.held.Add(-n); l.room.Add(n) }

func newLedger(room int64) *ledger {
	l := &ledger{}
	l.room.Store(room)
	return l
}

// Each attempt reads the whole body from its start, or is not made: whatever its
// length, however the app sends it, wherever attempts stop reading, and whatever
// room there is.
func TestEachAttemptHasTheWholeBody(t *testing.T) {
	full := noise(400 << 10)
	rapid.Check(t, func(rt *rapid.T) {
		sent := full[:rapid.IntRange(1, len(full)).Draw(rt, "length")]
		keep := rapid.Int64Range(1, 500<<10).Draw(rt, "kept at most")
		books := newLedger(rapid.Int64Range(0, 1<<20).Draw(rt, "room"))
		stops := rapid.SliceOfN(rapid.IntRange(0, len(sent)), 0, 3).Draw(rt, "attempts stop at")
		read := rapid.IntRange(1, 100<<10).Draw(rt, "bytes a read")
		known := rapid.Bool().Draw(rt, "length known")

		req, err := http.NewRequest(http.MethodPost, "http://model.test/", io.NopCloser(bytes.NewReader(sent)))
		if err != nil {
			rt.Fatal(err)
		}
		if req.ContentLength = -1; known {
			req.ContentLength = int64(len(sent))
		}
		attempt, stopped := 0, 0
		up := way(func(out *http.Request) (*http.Response, error) {
			attempt++
			body := &reader{out.Body, read}
			if attempt <= len(stops) {
				stopped = max(stopped, stops[attempt-1])
				got, err := io.ReadAll(io.LimitReader(body, int64(stops[attempt-1])))
				if err != nil || !bytes.HasPrefix(sent, got) {
					rt.Fatalf("attempt %d read %d bytes that the app did not send, %v", attempt, len(got), err)
				}
				return nil, errRefusedStream
			}
			got, err := io.ReadAll(body)
			if err != nil || !bytes.Equal(got, sent) {
				rt.Fatalf("attempt %d read %d of %d bytes, %v", attempt, len(got), len(sent), err)
			}
			return answer(200, ""), nil
		})
		d := &decisions{}
		tr := newTransport(t, up, retry.Config{MaxAttempts: 10, Budget: 1, BaseDelay: 1, ReplayBody: keep, Take: books.take, Give: books.give, OnAttempt: d.note})
		if resp, err := tr.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		} else if want := int64(stopped)+int64(read) > keep || books.room.Load() < int64(stopped+read+64<<10); !want {
			rt.Fatalf("gave up with %v although %d bytes may be kept and at most %d were read", d.verdicts(), keep, stopped)
		}
		if books.held.Load() != 0 {
			rt.Fatalf("%d bytes were not given back", books.held.Load())
		}
	})
}

// reader reads at most n bytes at once.
type reader struct {
	io.Reader
	n int
}

func (r *reader) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), r.n)]) }

// What the app sends while an abandoned attempt still waits for it goes to the next
// attempt: the app is never waited for twice, and no byte is lost.
func TestTheAppIsNeverWaitedForTwice(t *testing.T) {
	tests := []struct {
		name   string
		keep   int64
		resume time.Duration // when the app goes on
	}{
		{"while the second attempt waits", 1 << 20, time.Minute},
		{"more than may be kept", 4, time.Minute},
		{"during the wait between them", 1 << 20, time.Second},
		{"more than may be kept, during the wait", 4, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pr, pw := io.Pipe()
				var stale sync.WaitGroup
				var old io.Reader
				attempt := 0
				var got []byte
				up := way(func(out *http.Request) (*http.Response, error) {
					if attempt++; attempt == 1 {
						old = out.Body
						p := make([]byte, 64)
						n, _ := out.Body.Read(p)
						if string(p[:n]) != "one " {
							t.Errorf("the first attempt read %q", p[:n])
						}
						stale.Go(func() { _, _ = out.Body.Read(p) })
						synctest.Wait() // it waits for the app by now
						return answer(503, "", "Retry-After", "2"), nil
					}
					var err error
					if n, err := old.Read(make([]byte, 1)); n > 0 || err == nil {
						t.Errorf("the first attempt still reads %d bytes, %v", n, err)
					}
					got, err = io.ReadAll(out.Body)
					return answer(200, ""), err
				})
				tr := newTransport(t, up, retry.Config{ReplayBody: tt.keep, Statuses: []int{503}})
				go func() {
					_, _ = pw.Write([]byte("one "))
					time.Sleep(tt.resume)
					_, _ = pw.Write([]byte("two "))
					time.Sleep(time.Minute)
					_, _ = pw.Write([]byte("three"))
					_ = pw.Close()
				}()
				req := post("")
				req.Body, req.ContentLength = pr, -1
				if _, err := tr.RoundTrip(req); err != nil || string(got) != "one two three" {
					t.Errorf("the second attempt read %q, %v", got, err)
				}
				stale.Wait()
			})
		})
	}
}

// An app whose own body breaks off has left.
func TestABrokenUploadIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &decisions{}
		req := post("")
		req.Body, req.ContentLength = io.NopCloser(iotest.ErrReader(errors.New("cut"))), 10
		up := way(func(out *http.Request) (*http.Response, error) {
			_, _ = io.ReadAll(out.Body)
			return nil, &fault{phase: "send", code: "upstream_closed"}
		})
		_, err := newTransport(t, up, retry.Config{OnAttempt: d.note}).RoundTrip(req)
		if got := strings.Join(d.verdicts(), ", "); err == nil || got != "unsent app_gone" {
			t.Errorf("got %v, decided %q", err, got)
		}
	})
}

// closes counts Close.
type closes struct {
	io.Reader
	n atomic.Int32
}

func (c *closes) Close() error { c.n.Add(1); return nil }

// The kept bytes go back when the head arrives; where an attempt is still reading
// them, when it has, or when the answer is closed. The app's body is closed once.
func TestKeptBytesAreGivenBack(t *testing.T) {
	const size = 100 << 10
	tests := []struct {
		name           string
		read           int  // of the body by the second attempt before its head
		rest           bool // and the rest after it
		atHead, atRest int64
	}{
		{"body read before the head", size, false, 0, 0},
		{"rest read after the head", 10, true, 4 * 32 << 10, 0},
		{"rest never read", 10, false, 4 * 32 << 10, 4 * 32 << 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			books, src, attempt := newLedger(1<<20), &closes{Reader: bytes.NewReader(noise(size))}, 0
			var body io.ReadCloser
			up := way(func(out *http.Request) (*http.Response, error) {
				body = out.Body
				if attempt++; attempt == 1 {
					_, _ = io.ReadAll(out.Body)
					_ = out.Body.Close()
					return nil, errRefusedStream
				}
				_, _ = io.ReadFull(out.Body, make([]byte, tt.read))
				return answer(200, ""), nil
			})
			req := post("")
			req.Body, req.ContentLength = src, -1
			resp, err := newTransport(t, up, retry.Config{BaseDelay: 1, Take: books.take, Give: books.give}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if books.held.Load() != tt.atHead {
				t.Errorf("%d bytes held at the head, want %d", books.held.Load(), tt.atHead)
			}
			if tt.rest {
				if got, err := io.ReadAll(body); err != nil || len(got) != size-tt.read {
					t.Errorf("read %d bytes after the head, %v", len(got), err)
				}
			}
			if books.held.Load() != tt.atRest {
				t.Errorf("%d bytes held after the rest, want %d", books.held.Load(), tt.atRest)
			}
			_ = resp.Body.Close()
			if books.held.Load() != 0 {
				t.Errorf("%d bytes held in the end", books.held.Load())
			}
			_ = body.Close()
			_ = body.Close()
			if n := src.n.Load(); n != 1 {
				t.Errorf("the app's body was closed %d times, want once", n)
			}
		})
	}
}

// Over a real server: complete bodies with their own framing, whatever an attempt
// before had taken of them, and beyond what is kept none at all.
func TestRealServerNeverGetsAShortBody(t *testing.T) {
	want := noise(300_000)
	var arrived, whole atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		if got, err := io.ReadAll(r.Body); err == nil && sha256.Sum256(got) == sha256.Sum256(want) && r.Trailer.Get("Sum") == "s" == (r.ContentLength < 0) {
			whole.Add(1)
		}
	}))
	defer srv.Close()
	real := &http.Transport{}
	defer real.CloseIdleConnections()
	for _, keep := range []int64{1 << 20, 200_000} {
		for _, length := range []int64{int64(len(want)), -1} {
			t.Run(fmt.Sprintf("keep %d length %d", keep, length), func(t *testing.T) {
				arrived.Store(0)
				whole.Store(0)
				attempt := 0
				up := way(func(out *http.Request) (*http.Response, error) {
					if attempt++; attempt == 1 { // a stale connection that took all of it
						_, _ = io.Copy(io.Discard, out.Body)
						return nil, errRefusedStream
					}
					return real.RoundTrip(out)
				})
				req, err := http.NewRequest(http.MethodPost, srv.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				trailer := http.Header{"Sum": nil}
				req.Body, req.ContentLength = io.NopCloser(&atEnd{bytes.NewReader(want), func() { trailer.Set("Sum", "s") }}), length
				if length < 0 {
					req.Trailer = trailer
				}
				resp, err := newTransport(t, up, retry.Config{ReplayBody: keep}).RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				if keep < int64(len(want)) {
					if err == nil || arrived.Load() != 0 {
						t.Errorf("got %v and %d arrivals of a body that is not kept, want an error and none", err, arrived.Load())
					}
				} else if err != nil || arrived.Load() != 1 || whole.Load() != 1 {
					t.Errorf("got %v, %d arrivals, %d of them whole; want one whole", err, arrived.Load(), whole.Load())
				}
			})
		}
	}
}

// atEnd calls end once at the end.
type atEnd struct {
	io.Reader
	end func()
}

func (r *atEnd) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err == io.EOF {
		r.end()
	}
	return n, err
}
