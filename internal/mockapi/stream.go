// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// stream is the body of an answer, cut into events.
type stream struct {
	c    *call
	w    io.Writer
	gz   *gzip.Writer // nil means no coding
	ctl  *http.ResponseController
	n    int    // events sent
	fail []byte // what error=N sends, in the stream's own form
	over error  // what a fault right after the head has to say
}

// open sends the head. fail is what error=N sends.
func (c *call) open(contentType string, length int, fail []byte) (*stream, error) {
	h := c.w.Header()
	c.commonHeader()
	h.Set("Content-Type", contentType)
	st := &stream{c: c, w: c.w, ctl: http.NewResponseController(c.w), fail: fail}
	accepted := strings.Contains(strings.ToLower(c.r.Header.Get("Accept-Encoding")), "gzip")
	switch {
	case c.o.Gzip && (accepted || c.o.GzipForce):
		h.Set("Content-Encoding", "gzip")
		h.Set("Vary", "Accept-Encoding")
		st.gz = gzip.NewWriter(c.w)
		st.w = st.gz
	case length >= 0 && !c.o.Trailer && c.o.Clean == never && c.o.Error == never:
		h.Set("Content-Length", strconv.Itoa(length))
	}
	if strings.HasPrefix(contentType, "text/event-stream") {
		h.Set("Cache-Control", "no-cache")
	}
	if c.o.Trailer {
		h.Set("Trailer", "Mock-Trailer")
	}
	c.w.WriteHeader(http.StatusOK)
	if err := st.flush(); err != nil {
		return st, err
	}
	st.over = st.faults()
	return st, nil
}

func (st *stream) flush() error {
	if st.gz != nil {
		if err := st.gz.Flush(); err != nil {
			return err
		}
	}
	return st.ctl.Flush()
}

// faults does what was asked for after the events sent so far.
func (st *stream) faults() error {
	c, o := st.c, &st.c.o
	if st.n == o.Goaway {
		if err := connOf(c.r.Context()).goaway(o.GoawayHow); err != nil {
			return err
		}
		if o.GoawayHow == "abrupt" {
			return errAbort
		}
	}
	if st.n == o.Stall {
		if o.StallFor == 0 {
			<-c.r.Context().Done()
			return errAbort
		}
		if sleep(c.r.Context(), o.StallFor) != nil {
			return errAbort
		}
	}
	switch st.n {
	case o.Error:
		return firstError(st.write(st.fail), errStopped)
	case o.Clean:
		return errStopped
	case o.Reset:
		return c.reset()
	case o.Cut:
		return errAbort
	}
	return nil
}

// raw sends one event as it is.
func (st *stream) raw(b []byte) error {
	if st.over != nil {
		return st.over
	}
	if err := st.write(b); err != nil {
		return err
	}
	st.n++
	return st.faults()
}

func (st *stream) write(b []byte) error {
	if !st.c.o.Split {
		if _, err := st.w.Write(b); err != nil {
			return err
		}
		return st.flush()
	}
	for i := range b {
		if _, err := st.w.Write(b[i : i+1]); err != nil {
			return err
		}
		if err := st.flush(); err != nil {
			return err
		}
	}
	return nil
}

// sse sends one event of an event stream; name may be empty.
func (st *stream) sse(name string, data []byte) error { return st.raw(sseEvent(&st.c.o, name, data)) }

func sseEvent(o *Options, name string, data []byte) []byte {
	b := make([]byte, 0, len(data)+len(name)+48)
	if o.Comments {
		b = append(b, ": PROCESSING"+o.EOL+o.EOL...)
	}
	if name != "" {
		b = append(append(append(b, "event: "...), name...), o.EOL...)
	}
	b = append(append(b, "data: "...), data...)
	return append(b, o.EOL+o.EOL...)
}

// token waits until token i is due.
func (st *stream) token(i int) error {
	if st.over != nil {
		return st.over
	}
	wait := st.c.o.Gap
	if i == 0 {
		wait = st.c.o.TTFT
	}
	if sleep(st.c.r.Context(), wait) != nil {
		return errAbort
	}
	return nil
}

// end ends the body well, or as the error asks: err is what the last event
// returned.
func (st *stream) end(err error) error {
	if err == nil {
		err = st.over
	}
	if err != nil && !errors.Is(err, errStopped) {
		return err
	}
	if st.gz != nil {
		if err := st.gz.Close(); err != nil {
			return err
		}
	}
	if st.c.o.Trailer {
		st.c.w.Header().Set("Mock-Trailer", "events="+strconv.Itoa(st.n))
	}
	return nil
}

// unary answers with one JSON value in four pieces.
func (c *call) unary(v any) error {
	body := append(mustJSON(v), '\n')
	if sleep(c.r.Context(), c.o.TTFT) != nil {
		return errAbort
	}
	st, err := c.open("application/json", len(body), nil)
	for i := range 4 {
		if err == nil {
			err = st.raw(body[len(body)*i/4 : len(body)*(i+1)/4])
		}
	}
	return st.end(err)
}
