// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/transport/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is a set of endpoints a, b, c … that do what a test says.
type site struct {
	t   *testing.T
	way *route.Transport
	cfg route.Config

	mu      sync.Mutex               // guards the fields below
	takes   map[string]time.Duration // to the first byte
	does    map[string]func(*http.Request) (*http.Response, error)
	got     map[string]int
	order   []string
	ejected []string
}

func host(name string) string { return name + ".test" }

// endpoints makes them with weights, named a, b, c …
func endpoints(weights ...float64) []route.Endpoint {
	var out []route.Endpoint
	for i, w := range weights {
		name := string(rune('a' + i))
		if len(weights) > 26 {
			name = fmt.Sprintf("e%02d", i)
		}
		out = append(out, route.Endpoint{Name: name, URL: &url.URL{Scheme: "https", Host: host(name)}, Weight: w})
	}
	return out
}

func newSite(t *testing.T, cfg route.Config, list []route.Endpoint) *site {
	t.Helper()
	s := &site{t: t, cfg: cfg, takes: map[string]time.Duration{}, does: map[string]func(*http.Request) (*http.Response, error){}, got: map[string]int{}}
	s.cfg.OnEject = func(name string, why route.Reason, capped bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ejected = append(s.ejected, fmt.Sprintf("%s %s %v", name, why, capped))
	}
	var err error
	if s.way, err = route.New(s, list, s.cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// RoundTrip is what all endpoints do.
func (s *site) RoundTrip(req *http.Request) (*http.Response, error) {
	name := strings.TrimSuffix(req.URL.Host, ".test")
	if req.Host != req.URL.Host {
		s.t.Errorf("Host = %q at %q", req.Host, req.URL.Host)
	}
	s.mu.Lock()
	takes, does := s.takes[name], s.does[name]
	s.got[name]++
	s.order = append(s.order, name)
	s.mu.Unlock()
	if does != nil {
		return does(req)
	}
	return answer(200, &slow{wait: takes, text: "x"}, "text/event-stream"), nil
}

func answer(status int, body io.Reader, kind string) *http.Response {
	rc, ok := body.(io.ReadCloser)
	if !ok {
		rc = io.NopCloser(body)
	}
	return &http.Response{StatusCode: status, ProtoMajor: 2, Header: http.Header{"Content-Type": {kind}}, Body: rc, ContentLength: -1}
}

// A slow reader gives its text after a wait.
type slow struct {
	wait time.Duration
	text string
}

func (s *slow) Read(p []byte) (int, error) {
	timer := time.NewTimer(s.wait)
	<-timer.C
	s.wait = 0
	n := copy(p, s.text)
	s.text = s.text[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// request makes one for the upstream.
func request(ctx context.Context, fields ...string) *http.Request {
	req := (&http.Request{Method: "POST", URL: &url.URL{Scheme: "https", Host: "up.test", Path: "/v1/chat"}, Host: "up.test", Header: http.Header{}}).WithContext(ctx)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	return req
}

// call sends a request and reads its answer, and says where it went.
func (s *site) call(fields ...string) string {
	s.t.Helper()
	resp, err := s.way.RoundTrip(request(s.t.Context(), fields...))
	name := s.last()
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return name
}

// open sends a request and leaves its answer open.
func (s *site) open(fields ...string) (name string, body io.ReadCloser) {
	s.t.Helper()
	resp, err := s.way.RoundTrip(request(s.t.Context(), fields...))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.last(), resp.Body
}

func (s *site) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order[len(s.order)-1]
}

// state is that of one endpoint.
func (s *site) state(name string) route.State {
	for _, st := range s.way.States() {
		if st.Name == name {
			return st
		}
	}
	s.t.Fatalf("no endpoint %s", name)
	return route.State{}
}

// set changes what an endpoint does.
func (s *site) set(name string, does func(*http.Request) (*http.Response, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.does[name] = does
}

func (s *site) delay(name string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes[name] = d
}

func (s *site) events() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.ejected, ", ")
}

// A fault is an error of the way out, as the transport makes them.
type fault struct {
	phase, code   string
	expired, sent bool
}

func (f *fault) Error() string     { return f.phase + ": " + f.code }
func (f *fault) Phase() string     { return f.phase }
func (f *fault) Code() string      { return f.code }
func (f *fault) Timeout() bool     { return f.expired }
func (f *fault) RequestSent() bool { return f.sent }

func fails(err error) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func says(status int) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		return answer(status, strings.NewReader("no"), "text/plain"), nil
	}
}

var (
	errRefused = &fault{phase: "connect", code: "upstream_connect_refused"}
	errCut     = &fault{phase: "wait", code: "upstream_reset", sent: true}
	errLate    = &fault{phase: "wait", code: "upstream_response_header_timeout", sent: true, expired: true}
)

// numbers returns what a test gives for random ones, again and again.
func numbers(list ...float64) func() float64 {
	i := 0
	return func() float64 {
		v := list[i%len(list)]
		i++
		return v
	}
}
