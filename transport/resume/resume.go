// SPDX-License-Identifier: Apache-2.0

package resume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"
)

// MaxEvent is the longest event that is held until its end has come. Those of text
// are well below a KiB; the last one repeats the whole answer.
const MaxEvent = 1 << 20

// A Result says what became of a break. The set is closed: it is a metric label.
type Result string

// The results.
const (
	Resumed  Result = "resumed"   // another stream goes on where the broken one was
	Failed   Result = "failed"    // MaxAttempts brought nothing new
	Refused  Result = "refused"   // the server does not continue it
	TooLarge Result = "too_large" // an event was too long: breaks after it are passed on
	NoMemory Result = "no_memory" // Take refused room for an event: breaks after it are passed on
	AppGone  Result = "app_gone"
)

// Config is how a broken stream is continued. The zero value is the default.
type Config struct {
	MaxAttempts int           // in a row that bring no new event; 0 means 5
	BaseDelay   time.Duration // the widest first wait; doubled for each attempt; 0 means 100 ms
	MaxDelay    time.Duration // the longest wait; 0 means 5 s

	OnResume func(Result) // is told of every break that it tries to mend; nil = nobody. It must not block.
	// Take asks the process's byte budget for n bytes of an event that is held, Give
	// returns them. The first 4 KiB of each stream are not asked for. nil = no budget.
	Take func(n int64) bool
	Give func(n int64)
	Rand func() float64 // in [0, 1); nil means math/rand/v2
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 5)
	c.BaseDelay = cmp.Or(c.BaseDelay, 100*time.Millisecond)
	c.MaxDelay = cmp.Or(c.MaxDelay, 5*time.Second)
	if c.OnResume == nil {
		c.OnResume = func(Result) {}
	}
	if c.Take == nil || c.Give == nil {
		c.Take, c.Give = func(int64) bool { return true }, func(int64) {}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	d := c.WithDefaults()
	switch {
	case (c.Take == nil) != (c.Give == nil):
		return errors.New("resume: Take and Give belong together")
	case d.MaxAttempts < 0 || d.MaxAttempts > 100:
		return fmt.Errorf("resume: max_attempts is %d, want 1 to 100", c.MaxAttempts)
	case d.BaseDelay < 0 || d.MaxDelay < 0:
		return fmt.Errorf("resume: base_delay %v or max_delay %v is negative", c.BaseDelay, c.MaxDelay)
	case d.BaseDelay > d.MaxDelay:
		return fmt.Errorf("resume: base_delay %v is longer than max_delay %v", d.BaseDelay, d.MaxDelay)
	}
	return nil
}

// A Transport continues streams.
type Transport struct {
	next http.RoundTripper
	cfg  Config
}

// New returns a layer around next. It starts nothing.
func New(next http.RoundTripper, cfg Config) (*Transport, error) {
	if next == nil {
		return nil, errors.New("resume: there is no way out to send with")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Transport{next: next, cfg: cfg.WithDefaults()}, nil
}

// RoundTrip sends req. The body of an answer that may be continued is wrapped.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil || req.Method != http.MethodPost || !isStream(resp) {
		return resp, err
	}
	path, query, _ := strings.Cut(target(req), "?")
	if !strings.HasSuffix(path, "/responses") {
		return resp, nil
	}
	resp.Body = &stream{t: t, req: req, path: path, query: query, body: resp.Body, last: -1}
	return resp, nil
}

// target is the request target as it is sent.
func target(req *http.Request) string {
	if req.RequestURI != "" {
		return req.RequestURI
	}
	return req.URL.RequestURI()
}

// isStream says whether resp is a stream of events that can be read as it is.
func isStream(resp *http.Response) bool {
	return resp.StatusCode == http.StatusOK && resp.ContentLength < 0 && isEvents(resp)
}

// isEvents says whether the body of resp is one of events, without a coding.
func isEvents(resp *http.Response) bool {
	for _, coding := range resp.Header["Content-Encoding"] {
		if !strings.EqualFold(strings.TrimSpace(coding), "identity") {
			return false
		}
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && kind == "text/event-stream"
}

// bodyFields are those of a request that describe its body, or its own attempt: they
// have no place in one without.
var bodyFields = []string{
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Location", "Content-Md5",
	"Content-Digest", "Repr-Digest", "Digest", "Transfer-Encoding", "Trailer", "Expect", "Te", "Upgrade", "Connection",
	"Idempotency-Key", "X-Stainless-Retry-Count", "Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range",
}

// continuation builds the request for what comes after number last. id is safe.
func continuation(ctx context.Context, req *http.Request, path, query, id string, last int64) *http.Request {
	u := *req.URL
	var keep []string
	for part := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(part, "=")
		if part != "" && name != "stream" && name != "starting_after" {
			keep = append(keep, part)
		}
	}
	query = strings.Join(append(keep, "stream=true", fmt.Sprintf("starting_after=%d", last)), "&")
	out := (&http.Request{
		Method: http.MethodGet, URL: &u, Host: req.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: req.Header.Clone(),
	}).WithContext(untraced{ctx})
	if req.RequestURI != "" {
		out.RequestURI = path + "/" + id + "?" + query
	} else {
		u.RawQuery = query
		u.Path += "/" + id
		if u.RawPath != "" {
			u.RawPath += "/" + id
		}
		out.URL = &u
	}
	if out.Header == nil {
		out.Header = http.Header{}
	}
	for _, name := range bodyFields {
		delete(out.Header, name)
	}
	out.Header["Accept"] = []string{"text/event-stream"}
	out.Header["Accept-Encoding"] = []string{"identity"}
	return out
}

// An untraced context hides the caller's httptrace hooks: they are of a request that
// was answered long ago.
type untraced struct{ context.Context }

// Value hides what is found to be hooks; their key is httptrace's own.
func (c untraced) Value(key any) any {
	v := c.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}
