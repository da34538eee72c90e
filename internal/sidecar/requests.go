// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/ingress"
)

const (
	maxShown = 32        // requests of one list
	shownFor = time.Hour // a slow request is forgotten so long after its end
)

// requestLists keep what was slow or broke off, for people who look: the slowest of the
// last hour by each order, and the last that were interrupted.
type requestLists struct {
	mu          sync.Mutex // guards the fields below
	slowest     [len(orders)][]shownRequest
	interrupted []shownRequest // the newest last
}

// A shownRequest is a copy of what a record says, with its end.
type shownRequest struct {
	ingress.Record
	end time.Time
}

// orders are those of the slowest. The parameter by of the list names one.
var orders = [...]struct {
	name string
	of   func(*ingress.Record) time.Duration
}{
	{"duration", func(r *ingress.Record) time.Duration { return r.Duration }},
	{"first_token", func(r *ingress.Record) time.Duration { return r.TTFT }},
	{"late", func(r *ingress.Record) time.Duration { return r.Parts.Held + r.Parts.Network + r.Parts.App }},
}

// add takes a finished request. Tunnels and WebSockets are long by nature.
func (l *requestLists) add(r *ingress.Record) {
	cut := r.Outcome == ingress.OutcomeCutApp || r.Outcome == ingress.OutcomeCutUpstream || r.Outcome == ingress.OutcomeCutWarmwire ||
		r.Cause == ingress.CauseMissingTerminal || r.Cause == ingress.CauseErrorEvent
	shown := shownRequest{Record: *r, end: r.Start.Add(r.Duration)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if cut {
		if len(l.interrupted) == maxShown {
			l.interrupted = slices.Delete(l.interrupted, 0, 1)
		}
		l.interrupted = append(l.interrupted, shown)
	}
	if r.Mode == ingress.ModeTunnel || r.Mode == ingress.ModeWebSocket {
		return
	}
	for i := range orders {
		l.slowest[i] = rank(l.slowest[i], shown, orders[i].of)
	}
}

// rank puts shown where it belongs among the slowest, if it does.
func rank(list []shownRequest, shown shownRequest, of func(*ingress.Record) time.Duration) []shownRequest {
	d := of(&shown.Record)
	if d <= 0 {
		return list
	}
	if len(list) == maxShown && of(&list[maxShown-1].Record) >= d {
		if shown.end.Sub(oldest(list)) < shownFor {
			return list
		}
		list = current(list, shown.end)
	}
	at, _ := slices.BinarySearchFunc(list, d, func(e shownRequest, d time.Duration) int { return cmp.Compare(d, of(&e.Record)) })
	list = slices.Insert(list, at, shown)
	return list[:min(len(list), maxShown)]
}

func oldest(list []shownRequest) time.Time {
	return slices.MinFunc(list, func(a, b shownRequest) int { return a.end.Compare(b.end) }).end
}

// current leaves those out that are too old.
func current(list []shownRequest, now time.Time) []shownRequest {
	return slices.DeleteFunc(list, func(e shownRequest) bool { return now.Sub(e.end) >= shownFor })
}

// A requestStatus is one line of GET /v1/requests/….
type requestStatus struct {
	ID               uint64             `json:"id"` // as in the access log
	Upstream         string             `json:"upstream,omitempty"`
	Mode             string             `json:"mode"`
	Protocol         string             `json:"protocol"`
	UpstreamProtocol string             `json:"upstream_protocol,omitempty"`
	Connection       uint64             `json:"connection,omitempty"` // to the upstream, as in GET /v1/connections
	Started          time.Time          `json:"started"`
	Status           int                `json:"status,omitempty"`
	Outcome          string             `json:"outcome"`
	Cause            string             `json:"cause,omitempty"`
	Fault            string             `json:"fault,omitempty"` // what it suffered from most
	Finding          *findingStatus     `json:"finding,omitempty"`
	DurationMS       float64            `json:"duration_ms"`
	TTFTMS           float64            `json:"ttft_ms,omitempty"`
	StagesMS         map[string]float64 `json:"stages_ms"` // they sum to the duration; those that did not happen are left out
	Chunks           int                `json:"chunks,omitempty"`
	BytesOut         int64              `json:"bytes_out"`
	Attempts         int                `json:"attempts,omitempty"`
}

func (e *shownRequest) status() requestStatus {
	r := &e.Record
	st := requestStatus{
		ID: r.ID, Upstream: r.Upstream, Mode: string(r.Mode), Protocol: r.AppProto, UpstreamProtocol: r.UpstreamProto, Connection: r.Conn,
		Started: r.Start.UTC(), Status: r.Status, Outcome: string(r.Outcome), Cause: r.Cause, Fault: string(r.Fault),
		DurationMS: millis(r.Duration), TTFTMS: millis(r.TTFT), StagesMS: map[string]float64{}, Chunks: r.Chunks, BytesOut: r.BytesOut, Attempts: r.Attempts,
	}
	if r.Finding.Span > 0 {
		st.Finding = findingOf(&r.Finding)
	}
	p := &r.Phases
	for _, stage := range [...]struct {
		name string
		d    time.Duration
	}{{"queue", p.Queue}, {"dns", p.DNS}, {"connect", p.Connect}, {"tls", p.TLS}, {"send", p.Send}, {"wait", p.Wait}, {"retry", p.Retry}, {"first_token", p.FirstToken},
		{"provider", r.Parts.Provider}, {"held", r.Parts.Held}, {"network", r.Parts.Network}, {"app", r.Parts.App}} {
		if stage.d > 0 {
			st.StagesMS[stage.name] = millis(stage.d)
		}
	}
	return st
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// slowestBy lists the slowest of the last hour by an order, "" = duration; false = there
// is no such order.
func (l *requestLists) slowestBy(name string, now time.Time) ([]requestStatus, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range orders {
		if orders[i].name == cmp.Or(name, orders[0].name) {
			l.slowest[i] = current(l.slowest[i], now)
			return statuses(l.slowest[i]), true
		}
	}
	return nil, false
}

// lastInterrupted lists them, the newest first.
func (l *requestLists) lastInterrupted() []requestStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := statuses(l.interrupted)
	slices.Reverse(out)
	return out
}

func statuses(list []shownRequest) []requestStatus {
	out := make([]requestStatus, 0, len(list))
	for i := range list {
		out = append(out, list[i].status())
	}
	return out
}

// flight shows one connection's log, or lists them if id is 0; false = there is none.
func (s *Sidecar) flight(id uint64) (any, bool) {
	if id == 0 {
		return s.flights.List(), true
	}
	return s.flights.Flight(id)
}

// slowRequests and interruptedRequests are what the admin listener shows.
func (s *Sidecar) slowRequests(by string) (any, bool) { return s.requests.slowestBy(by, time.Now()) }
func (s *Sidecar) interruptedRequests() any           { return s.requests.lastInterrupted() }
