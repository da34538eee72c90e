// SPDX-License-Identifier: Apache-2.0

package resume_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/transport/resume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errCut = errors.New("the upstream reset the stream")

// record is a stream of the Responses API, an event an element.
func record(eol string, background, store bool) []string {
	response := fmt.Sprintf(`{"id":"resp_68a1","object":"response","status":"in_progress","background":%v,"store":%v,"metadata":{"sequence_number":"7"}}`, background, store)
	datas := []string{
		`{"type":"response.created","sequence_number":0,"response":` + response + `}`,
		`{"type":"response.queued","sequence_number":1,"response":` + response + `}`,
		`{"type":"response.in_progress","sequence_number":2,"response":` + response + `}`,
		`{"type":"response.output_text.delta","sequence_number":3,"delta":"a \"sequence_number\":9 \n\n"}`,
		`{"type":"response.output_text.delta","sequence_number":4,"delta":"é😀"}`,
		`{"type":"response.output_text.delta","sequence_number":5,"delta":"b"}`,
		`{"type":"response.completed","sequence_number":6,"response":` + response + `}`,
	}
	var events []string
	for _, data := range datas {
		kind, _, _ := strings.Cut(data[len(`{"type":"`):], `"`)
		events = append(events, "event: "+kind+eol+"data: "+data+eol+eol)
	}
	return events
}

// An upstream keeps a record, and breaks what it sends of it.
type upstream struct {
	events []string
	cuts   []int // bytes of each answer that are sent; none left = all
	end    error // what a cut answer ends with
	chunk  int   // bytes a read; 0 = as many as fit
	again  func(after int) (int, bool)
	get    func(*http.Request) *http.Response // instead of going on; nil = go on

	mu    sync.Mutex // guards the fields below
	after []int      // of each GET
	reqs  []*http.Request
	open  int
}

func (u *upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	from := 0
	if req.Method == http.MethodGet {
		u.reqs = append(u.reqs, req)
		query := req.URL.RawQuery
		if req.RequestURI != "" {
			_, query, _ = strings.Cut(req.RequestURI, "?")
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			return nil, err
		}
		after, err := strconv.Atoi(values.Get("starting_after"))
		if err != nil {
			return nil, err
		}
		u.after = append(u.after, after)
		if from = after + 1; u.again != nil {
			var ok bool
			if from, ok = u.again(after); !ok {
				return nil, errCut
			}
		}
		if u.get != nil {
			if resp := u.get(req); resp != nil {
				return resp, nil
			}
		}
	}
	content, end := strings.Join(u.events[from:], ""), io.EOF
	if len(u.cuts) > 0 {
		if u.cuts[0] < len(content) {
			content, end = content[:u.cuts[0]], u.end
		}
		u.cuts = u.cuts[1:]
	}
	u.open++
	return events(&body{u: u, r: strings.NewReader(content), end: end}), nil
}

func events(body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, Body: body, ContentLength: -1}
}

func status(code int, fields ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Set(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader("no")), ContentLength: 2}
}

// body gives what it has, and then its end, in the Read with the last bytes or after.
type body struct {
	u      *upstream
	r      *strings.Reader
	end    error
	closed bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.u.chunk > 0 && len(p) > b.u.chunk {
		p = p[:b.u.chunk]
	}
	n, err := b.r.Read(p)
	if err == io.EOF || n > 0 && b.r.Len() == 0 && n%2 == 0 { // both are allowed
		return n, b.end
	}
	return n, nil
}

func (b *body) Close() error {
	if !b.closed {
		b.closed = true
		b.u.mu.Lock()
		b.u.open--
		b.u.mu.Unlock()
	}
	return nil
}

func post(t testing.TB) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://model.test/v1/responses", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func newTransport(t testing.TB, next http.RoundTripper, cfg resume.Config) *resume.Transport {
	t.Helper()
	tr, err := resume.New(next, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// results collects what became of breaks.
type results struct{ all []resume.Result }

func (r *results) note(one resume.Result) { r.all = append(r.all, one) }

// readAll reads n bytes at once.
func readAll(r io.Reader, n int) ([]byte, error) {
	var all bytes.Buffer
	p := make([]byte, n)
	for {
		n, err := r.Read(p)
		all.Write(p[:n])
		if err == io.EOF {
			return all.Bytes(), nil
		}
		if err != nil {
			return all.Bytes(), err
		}
	}
}

// oneEnd makes all line ends LF: of a CR and a LF that are cut apart, the LF does not
// come again.
func oneEnd(b []byte) string {
	return strings.ReplaceAll(strings.ReplaceAll(string(b), "\r\n", "\n"), "\r", "\n")
}
