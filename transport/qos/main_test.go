// SPDX-License-Identifier: Apache-2.0

package qos_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/transport/qos"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const s, ms = time.Second, time.Millisecond

// A way is a way out made of a function.
type way func(*http.Request) (*http.Response, error)

func (w way) RoundTrip(req *http.Request) (*http.Response, error) { return w(req) }

// A stream is an answer's body that lasts.
type stream struct {
	ctx    context.Context
	lasts  time.Duration
	closed chan struct{}
	once   sync.Once
}

func (b *stream) Read([]byte) (int, error) {
	select {
	case <-time.After(b.lasts):
		return 0, io.EOF
	case <-b.closed:
		return 0, errors.New("closed")
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *stream) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// streams is an upstream whose answers have their head at once and last as long as their
// request's field Lasts says.
func streams(req *http.Request) (*http.Response, error) {
	lasts, err := time.ParseDuration(req.Header.Get("Lasts"))
	if err != nil {
		return nil, err
	}
	return answer(200, &stream{ctx: req.Context(), lasts: lasts, closed: make(chan struct{})}), nil
}

func answer(status int, body io.ReadCloser, nv ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: body}
	for i := 0; i < len(nv); i += 2 {
		resp.Header.Add(nv[i], nv[i+1])
	}
	return resp
}

// tell takes a request's ticket from its fields.
func tell(req *http.Request) qos.Ticket {
	class, _ := strconv.Atoi(req.Header.Get("Class"))
	weight, _ := strconv.Atoi(req.Header.Get("Weight"))
	return qos.Ticket{Class: qos.Class(class), Tenant: req.Header.Get("Tenant"), Weight: weight}
}

// A rig is a gate and a way through it.
type rig struct {
	t    *testing.T
	gate *qos.Gate
	way  *qos.Transport
	from time.Time

	mu      sync.Mutex // guards the following
	begun   []event
	refused []*qos.Error
	work    sync.WaitGroup
}

// An event is when something happened to a named request, counted from the start.
type event struct {
	name string
	at   time.Duration
	err  qos.Reason // "" = it began
}

func newRig(t *testing.T, next way, cfg qos.Config) *rig {
	t.Helper()
	gate, err := qos.NewGate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, gate: gate, from: time.Now()}
	r.way, err = qos.New(way(func(req *http.Request) (*http.Response, error) {
		r.note(event{name: req.Header.Get("Name"), at: time.Since(r.from)})
		return next(req)
	}), gate, tell)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) note(e event) {
	r.mu.Lock()
	r.begun = append(r.begun, e)
	r.mu.Unlock()
}

// A call is a request to come.
type call struct {
	name   string
	class  qos.Class
	tenant string
	weight int
	at     time.Duration
	lasts  time.Duration
	leaves time.Duration // after which its app is gone; 0 = never
}

// send makes the calls, each at its time, and waits for all of them.
func (r *rig) send(calls ...call) {
	slices.SortStableFunc(calls, func(a, b call) int { return int(a.at - b.at) })
	for _, c := range calls {
		due := time.NewTimer(c.at - time.Since(r.from)) // on the bubble's clock
		<-due.C
		r.work.Go(func() { r.one(c) })
		synctest.Wait() // calls of one moment come in their order
	}
	r.work.Wait()
}

func (r *rig) one(c call) {
	ctx := r.t.Context()
	if c.leaves > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.leaves)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://up.test/", nil)
	if err != nil {
		r.t.Error(err)
		return
	}
	for name, value := range map[string]string{"Name": c.name, "Class": strconv.Itoa(int(c.class)), "Tenant": c.tenant,
		"Weight": strconv.Itoa(c.weight), "Lasts": c.lasts.String()} {
		req.Header.Set(name, value)
	}
	resp, err := r.way.RoundTrip(req)
	if err != nil {
		var refused *qos.Error
		if errors.As(err, &refused) {
			r.note(event{c.name, time.Since(r.from), refused.Reason})
			r.mu.Lock()
			r.refused = append(r.refused, refused)
			r.mu.Unlock()
		}
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

// want compares what happened with what should.
func (r *rig) want(events ...event) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range max(len(events), len(r.begun)) {
		if i >= len(events) || i >= len(r.begun) || r.begun[i] != events[i] {
			r.t.Fatalf("events\n%v, want\n%v", r.begun, events)
		}
	}
}

// burst is n calls that are alike.
func burst(n int, c call) []call {
	out := make([]call, n)
	for i := range out {
		out[i] = c
		out[i].name += strconv.Itoa(i)
	}
	return out
}
