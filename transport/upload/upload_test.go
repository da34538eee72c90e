// SPDX-License-Identifier: Apache-2.0

package upload_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/upload"
)

const room = 5

// A sink is a stream that keeps what it is offered.
type sink struct {
	got      strings.Builder
	ends     int
	trailers int
	wrote    error
	full     int // takes no more after so many bytes; 0 = takes all
}

func (s *sink) Offer(p []byte, end bool) bool {
	s.got.Write(p[room:])
	if end {
		s.ends++
	}
	return s.full == 0 || s.got.Len() < s.full
}

func (s *sink) SendTrailers() error    { s.trailers++; return nil }
func (s *sink) WroteRequest(err error) { s.wrote = err }

// A closer counts its closes.
type closer struct {
	io.Reader
	closed int
}

func (c *closer) Close() error { c.closed++; return nil }

func request(body io.ReadCloser, length int64) *http.Request {
	return &http.Request{Header: http.Header{}, Body: body, ContentLength: length}
}

func TestABodyIsSentAsDeclared(t *testing.T) {
	broken := errors.New("the app's disk is full")
	for _, c := range []struct {
		name     string
		body     io.Reader
		declared int64
		trailers bool
		full     int
		got      string
		ends     int
		err      string
	}{
		{name: "whole", body: strings.NewReader("hello"), declared: 5, got: "hello", ends: 1},
		{name: "of unknown length", body: strings.NewReader("hello"), got: "hello", ends: 1},
		{name: "byte by byte", body: iotest.OneByteReader(strings.NewReader("hello")), declared: 5, got: "hello", ends: 1},
		{name: "end beside the last bytes", body: iotest.DataErrReader(strings.NewReader("hello")), got: "hello", ends: 1},
		{name: "empty, of unknown length", body: strings.NewReader(""), got: "", ends: 1},
		{name: "with trailers", body: strings.NewReader("hello"), trailers: true, got: "hello"},
		{name: "too long", body: iotest.OneByteReader(strings.NewReader("hello!")), declared: 5, got: "hello", ends: 1, err: "longer than the 5 bytes declared"},
		{name: "too short", body: strings.NewReader("hell"), declared: 5, got: "hell", err: "ended after 4 of the 5 bytes"},
		{name: "broken", body: io.MultiReader(strings.NewReader("he"), iotest.ErrReader(broken)), declared: 5, got: "he", err: broken.Error()},
		{name: "not wanted", body: iotest.OneByteReader(strings.NewReader("hello")), declared: 5, full: 2, got: "he"},
	} {
		t.Run(c.name, func(t *testing.T) {
			to, body := &sink{full: c.full}, &closer{Reader: c.body}
			req := request(body, c.declared)
			if c.trailers {
				req.Trailer = http.Header{"X-Sum": nil}
			}
			b := upload.New(req, to, nil)
			err := b.Send(make([]byte, room+16), room)
			b.End()
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%v, want %q", err, c.err)
			}
			if to.got.String() != c.got || to.ends != c.ends || to.trailers > 0 != c.trailers {
				t.Errorf("sent %q with %d ends and %d trailers, want %q, %d", to.got.String(), to.ends, to.trailers, c.got, c.ends)
			}
			if body.closed != 1 {
				t.Errorf("closed %d times", body.closed)
			}
		})
	}
}

// A Read that waits for the app is ended by a Close beside it, once.
func TestStopEndsAReadThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		defer func() { _ = w.Close() }()
		to := &sink{}
		b := upload.New(request(r, -1), to, nil)
		over := make(chan error, 1)
		go func() {
			err := b.Send(make([]byte, room+16), room)
			b.End()
			over <- err
		}()
		synctest.Wait()
		why := errors.New("answered before")
		b.Stop(why)
		b.Stop(nil)
		if err := <-over; err != nil || to.ends > 0 || !errors.Is(to.wrote, why) {
			t.Errorf("%v, %d ends, told %v", err, to.ends, to.wrote)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the app may still write: %v", err)
		}
	})
}

func TestContinueIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name string
			ask  string
			then func(b *upload.Body)
			send bool
			took time.Duration
		}{
			{"not asked", "", nil, true, 0},
			{"nobody answers", "100-Continue", nil, true, upload.ContinueTimeout},
			{"100", "100-continue", (*upload.Body).GoOn, true, 300 * time.Millisecond},
			{"stopped", "100-continue", func(b *upload.Body) { b.Stop(nil) }, false, 300 * time.Millisecond},
		} {
			req := request(io.NopCloser(strings.NewReader("x")), 1)
			if c.ask != "" {
				req.Header.Set("Expect", c.ask)
			}
			b := upload.New(req, &sink{}, nil)
			if c.then != nil {
				time.AfterFunc(300*time.Millisecond, func() { c.then(b) })
			}
			began := time.Now()
			if send, took := b.AwaitContinue(), time.Since(began); send != c.send || took != c.took {
				t.Errorf("%s: %v after %v, want %v after %v", c.name, send, took, c.send, c.took)
			}
		}
	})
}

func TestNoBodyIsNone(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		if req := request(body, -1); upload.New(req, &sink{}, nil) != nil || upload.DeclaredLength(req) != 0 {
			t.Errorf("%T is a body", body)
		}
	}
	if n := upload.DeclaredLength(request(io.NopCloser(strings.NewReader("x")), 0)); n != -1 {
		t.Errorf("0 beside a body is %d, want unknown", n)
	}
}
