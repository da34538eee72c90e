// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/transport/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A way is a way out made of a function.
type way func(*http.Request) (*http.Response, error)

func (w way) RoundTrip(req *http.Request) (*http.Response, error) { return w(req) }

// A fault is an error of the way out, as the transport makes them.
type fault struct {
	phase, code   string
	expired, sent bool
	err           error
}

func (f *fault) Error() string     { return f.phase + ": " + f.code }
func (f *fault) Unwrap() error     { return f.err }
func (f *fault) Phase() string     { return f.phase }
func (f *fault) Code() string      { return f.code }
func (f *fault) Timeout() bool     { return f.expired }
func (f *fault) RequestSent() bool { return f.sent }

// The failures that tests use most.
var (
	errRefusedConn   = &fault{phase: "connect", code: "upstream_connect_refused"}
	errRefusedStream = &fault{phase: "wait", code: "upstream_reset"}
	errCut           = &fault{phase: "wait", code: "upstream_reset", sent: true}
)

// answer makes a response; fields are pairs of name and value.
func answer(status int, body string, fields ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

// script answers each attempt with its next step and notes when it came. The last
// step answers all that follow.
type script struct {
	steps []func() (*http.Response, error)
	mu    sync.Mutex // guards the fields below
	at    []time.Time
	got   []string // bodies
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Now())
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		_ = req.Body.Close()
		s.got = append(s.got, string(b))
		if err != nil {
			return nil, err
		}
	}
	return s.steps[min(len(s.at), len(s.steps))-1]()
}

func fails(err error) func() (*http.Response, error) {
	return func() (*http.Response, error) { return nil, err }
}

func answers(status int, body string, fields ...string) func() (*http.Response, error) {
	return func() (*http.Response, error) { return answer(status, body, fields...), nil }
}

// gaps is how long after the start each attempt was made.
func (s *script) gaps(start time.Time) []time.Duration {
	var gaps []time.Duration
	for _, at := range s.at {
		gaps = append(gaps, at.Sub(start))
	}
	return gaps
}

func newTransport(t testing.TB, next http.RoundTripper, cfg retry.Config) *retry.Transport {
	t.Helper()
	tr, err := retry.New(next, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// decisions collects verdicts.
type decisions struct {
	mu  sync.Mutex // guards all
	all []retry.Decision
}

func (d *decisions) note(one retry.Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

func (d *decisions) verdicts() (v []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		v = append(v, string(one.Reason)+" "+string(one.Verdict))
	}
	return v
}

func post(body string) *http.Request {
	req, err := http.NewRequest(http.MethodPost, "http://model.test/v1/responses", strings.NewReader(body))
	if err != nil {
		panic(err) // the arguments are constants
	}
	req.GetBody = nil // as that of a relayed request
	return req
}
