// SPDX-License-Identifier: Apache-2.0

package layer

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

type told struct{ all []string }

func (w *told) note(s string) { w.all = append(w.all, s) }
func (w *told) Closed()       { w.note("closed") }
func (w *told) Ended(err error) {
	if err == nil {
		err = errors.New("whole")
	}
	w.note(err.Error())
}

// counting wants to know all.
type counting struct{ told }

func (w *counting) Came()            { w.note("came") }
func (w *counting) Refused()         { w.note("refused") }
func (w *counting) Endpoint() string { return "https://here.test" }

type plain struct{ io.Reader }

func (plain) Close() error  { return nil }
func (plain) Buffered() int { return 7 }

type streamed struct{ plain }

func (s streamed) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{s.plain})
}

type pipe struct{ plain }

func (pipe) Write(p []byte) (int, error) { return len(p), nil }

type websocket struct{ pipe }

func (websocket) CloseWrite() error { return nil }
func (websocket) Watch() net.Conn   { return nil }
func (websocket) Endpoint() string  { return "https://there.test" }

// TestWhatIsTold reads each kind of body to its end, and closes it.
func TestWhatIsTold(t *testing.T) {
	text := func() plain { return plain{strings.NewReader("two")} }
	for name, tt := range map[string]struct {
		body        func() io.ReadCloser
		less, whole []string // a Watcher is told, and a Counter
	}{
		"plain":  {func() io.ReadCloser { return text() }, []string{"EOF", "closed"}, []string{"came", "EOF", "closed"}},
		"stream": {func() io.ReadCloser { return streamed{text()} }, []string{"whole", "closed"}, []string{"came", "whole", "closed"}},
		"pipe":   {func() io.ReadCloser { return pipe{text()} }, []string{"closed"}, []string{"closed"}},
		"socket": {func() io.ReadCloser { return websocket{pipe{text()}} }, []string{"closed"}, []string{"closed"}},
	} {
		for _, c := range []bool{false, true} {
			simple, counter := &told{}, &counting{}
			w, got, want := Watcher(simple), simple, tt.less
			if c {
				w, got, want = counter, &counter.told, tt.whole
			}
			kind := tt.body()
			wrapped := Body(kind, w)
			if all, err := copied(wrapped); all != "two" || err != nil {
				t.Errorf("%s: %q, %v", name, all, err)
			}
			_ = wrapped.Close()
			if !slices.Equal(got.all, want) {
				t.Errorf("%s: told %q, want %q", name, got.all, want)
			}
			_, wantsWriterTo := kind.(io.WriterTo)
			if _, is := wrapped.(io.WriterTo); is != wantsWriterTo {
				t.Errorf("%s: WriteTo: %v", name, is)
			}
			_, wantsSocket := kind.(socket)
			if _, is := wrapped.(socket); is != wantsSocket {
				t.Errorf("%s: socket: %v", name, is)
			}
			if _, is := wrapped.(io.Writer); is != (name == "pipe" || name == "socket") {
				t.Errorf("%s: Write: %v", name, is)
			}
			if wrapped.(interface{ Buffered() int }).Buffered() != 7 {
				t.Errorf("%s: what is buffered is not said", name)
			}
			if at, is := wrapped.(Place); is && at.Endpoint() != map[bool]string{true: "https://here.test", false: "https://there.test"}[c] {
				t.Errorf("%s: open to %s", name, at.Endpoint())
			}
		}
	}
}

// copied reads b as the relay does.
func copied(b io.Reader) (string, error) {
	var all strings.Builder
	_, err := io.Copy(&all, b)
	return all.String(), err
}

// TestWhoseErrorItIs has the writer fail, and then the answer of a real server.
func TestWhoseErrorItIs(t *testing.T) {
	w := &counting{}
	refusing := writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe })
	if _, err := Body(streamed{plain{strings.NewReader("x")}}, w).(io.WriterTo).WriteTo(refusing); !errors.Is(err, io.ErrClosedPipe) || !slices.Equal(w.all, []string{"came", "refused"}) {
		t.Errorf("%v, told %q", err, w.all)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	resp, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	w = &counting{}
	cut := Body(resp.Body, w)
	if all, err := copied(cut); all != "half" || err == nil || len(w.all) < 2 || w.all[0] != "came" || w.all[len(w.all)-1] != err.Error() {
		t.Errorf("%q, %v, told %q", all, err, w.all)
	}
	_ = cut.Close()
	http.DefaultClient.CloseIdleConnections()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A held body is one that has bytes waiting.
type held struct {
	io.Reader
	n      int
	closed int
}

func (h *held) Buffered() int { return h.n }
func (h *held) Close() error  { h.closed++; return nil }

type heldStream struct{ *held }

func (h heldStream) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, h.Reader) }

func TestOnCloseKeepsWhatABodyCan(t *testing.T) {
	inner := &held{Reader: strings.NewReader("token"), n: 5}
	done := 0
	body := OnClose(heldStream{inner}, func() { done++ })
	if got := body.(interface{ Buffered() int }).Buffered(); got != 5 {
		t.Errorf("%d bytes wait, want 5", got)
	}
	var got strings.Builder
	if _, err := body.(io.WriterTo).WriteTo(&got); err != nil || got.String() != "token" || done != 0 {
		t.Errorf("%q, %v, done %d times before Close", got.String(), err, done)
	}
	if err := body.Close(); err != nil || inner.closed != 1 || done != 1 {
		t.Errorf("%v, closed %d times, done %d times", err, inner.closed, done)
	}
}
