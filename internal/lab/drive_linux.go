// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// reopenDelay is how long a client waits after it could not open a stream.
const reopenDelay = 200 * time.Millisecond

// downloads beside the streams, where there are some.
const downloads = 8

// openLimit is how long a client waits for a stream to open.
const openLimit = 10 * time.Second

// hold keeps a client's stream open until ctx ends; with again it opens the next
// one when one is cut.
func (s *study) hold(ctx context.Context, c client, query string, again bool, t *track) {
	e := s.site.env
	for ctx.Err() == nil {
		opened := e.now()
		src, err := openWithin(ctx, c, query)
		if err != nil {
			if ctx.Err() == nil {
				t.add(attempt{opened: opened, ended: e.now(), cut: true, why: err.Error()})
			}
			_ = sleep(ctx, reopenDelay)
			continue
		}
		a := follow(e, src, opened, func() bool { return ctx.Err() != nil })
		src.close()
		t.add(a)
		if !again {
			return
		}
	}
}

// openWithin opens a stream that lives as long as ctx, within the limit.
func openWithin(ctx context.Context, c client, query string) (source, error) {
	ctx, cancel := context.WithCancel(ctx)
	limit := time.AfterFunc(openLimit, cancel)
	src, err := c.open(ctx, query)
	if !limit.Stop() && err == nil { // it passed just now
		src.close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &bounded{src, cancel}, nil
}

// A bounded source gives its context up when it is closed.
type bounded struct {
	source
	cancel func()
}

func (b *bounded) close() {
	b.source.close()
	b.cancel()
}

// begin starts hold for every client and returns the log to be, and what waits
// for their end.
func (s *study) begin(ctx context.Context, sc scenario, clients [][]client, again bool) (*runLog, *sync.WaitGroup) {
	log := &runLog{window: window{start: s.site.env.now()}}
	var running sync.WaitGroup
	for i, arm := range clients {
		tracks := make([]*track, len(arm))
		for j, c := range arm {
			tracks[j] = new(track)
			query := ""
			switch low, high := s.Length.think(sc); {
			case sc.pauses: // every arm has the same pauses
				query = fmt.Sprintf("pauses=%d", s.Seed<<8+uint64(j))
			case high > 0:
				query = fmt.Sprintf("think=%d,%v,%v", s.Seed<<8+uint64(j), low, high)
			}
			if sc.speak {
				query += "&" + speaking
			}
			running.Go(func() {
				// Streams that begin together would be one stream to the path.
				stagger := time.Duration(j*len(clients)+i) * 17 * time.Millisecond
				if sleep(ctx, stagger) == nil {
					s.hold(ctx, c, query, again, tracks[j])
				}
			})
		}
		log.arms = append(log.arms, tracks)
	}
	return log, &running
}

// stream holds streams open while the path does what the scenario says.
func (s *study) stream(ctx context.Context, sc scenario, clients [][]client) (*runLog, error) {
	during, stop := context.WithCancel(ctx)
	defer stop()
	log, running := s.begin(during, sc, clients, true)
	defer running.Wait()
	defer stop()
	if sc.bulk {
		for range downloads { // one alone would take minutes to fill the queue
			running.Go(func() { s.download(during) })
		}
	}
	err := sleep(ctx, settleTime)
	amount := s.Length.amount(sc)
	if sc.event == noEvent {
		err = errors.Join(err, sleep(ctx, time.Duration(amount)*time.Second))
	} else {
		err = errors.Join(err, s.trouble(ctx, sc.event, amount, log))
	}
	log.end = s.site.env.now()
	stop()
	running.Wait()
	return log, err
}

// trouble makes events happen.
func (s *study) trouble(ctx context.Context, kind event, n int, log *runLog) error {
	for range n {
		length := uniform(s.random, eventMin, eventMax)
		start := s.site.env.now()
		var err error
		if kind == blackout {
			err = s.site.lab.Outage(length)
		} else {
			err = s.site.lab.Hold(length)
		}
		if err != nil {
			return err
		}
		log.events = append(log.events, window{start, start + length})
		if err := sleep(ctx, length+uniform(s.random, eventGapMin, eventGapMax)); err != nil {
			return err
		}
	}
	return nil
}

// download takes all that the path gives, until ctx ends.
func (s *study) download(ctx context.Context) {
	t := &http.Transport{DialContext: s.site.env.dial, DisableKeepAlives: true}
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.site.env.plain+"/bulk", nil)
		if err != nil {
			return
		}
		if resp, err := t.RoundTrip(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		_ = sleep(ctx, reopenDelay)
	}
}

// firsts opens streams on new connections of the clients, one after another, up
// to their first frames. One client of each arm does so.
func (s *study) firsts(ctx context.Context, sc scenario, clients [][]client) (*runLog, error) {
	log := &runLog{window: window{start: s.site.env.now()}}
	var running sync.WaitGroup
	for i, arm := range clients {
		t := new(track)
		log.arms = append(log.arms, []*track{t})
		running.Go(func() {
			// Each arm at its own rhythm, so that all meet the same path.
			rhythm := rand.New(rand.NewPCG(s.Seed, uint64(i)))
			for range s.Length.amount(sc) {
				if sleep(ctx, uniform(rhythm, 50*time.Millisecond, 350*time.Millisecond)) != nil {
					return
				}
				s.first(ctx, arm[0], t)
				arm[0].close()
			}
		})
	}
	running.Wait()
	log.end = s.site.env.now()
	return log, context.Cause(ctx)
}

// first opens one stream up to its first frame.
func (s *study) first(ctx context.Context, c client, t *track) {
	e := s.site.env
	a := attempt{opened: e.now()}
	src, err := openWithin(ctx, c, "tokens=1")
	if err == nil {
		if _, err = src.next(); err == nil {
			a.first = e.now()
			// The end of the answer: only then is the connection idle.
			for _, rest := src.next(); rest == nil; _, rest = src.next() {
				if _, isWS := c.(*wsClient); isWS {
					break // it would go on for ever
				}
			}
		}
		src.close()
	}
	a.ended = e.now()
	if err != nil {
		a.cut, a.limit, a.why = true, errors.Is(err, errLimit), err.Error()
	}
	t.add(a)
}

// die lets the path or the flows die under open streams and waits for the
// clients to notice.
func (s *study) die(ctx context.Context, sc scenario, clients [][]client) (*runLog, error) {
	wait := time.Duration(s.Length.amount(sc)) * time.Second
	during, stop := context.WithCancel(ctx)
	defer stop()
	log, running := s.begin(during, sc, clients, false)
	defer running.Wait()
	defer stop()
	settle := settleTime
	if sc.beats { // many begin at the same time
		settle = beatSettleTime
	}
	if err := sleep(ctx, settle); err != nil {
		return nil, err
	}
	death := window{start: s.site.env.now()}
	var err error
	if sc.flow {
		err = s.site.lab.ForgetFlows()
	} else {
		dead := far()
		dead.Loss = 1
		err = s.site.lab.Set(dead, dead)
	}
	if err != nil {
		return nil, err
	}
	watched := s.beginWatch(during, sc, log)
	all := make(chan struct{})
	go func() { running.Wait(); close(all) }()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-all:
	case <-limit.C:
	case <-ctx.Done():
	}
	death.end = s.site.env.now()
	if err := watched(); err != nil {
		return nil, err
	}
	log.events, log.end = []window{death}, death.end
	stop()
	<-all
	// What is left of the dead flows must not trouble the next scenario.
	return log, errors.Join(context.Cause(ctx), s.site.lab.Set(sc.up, sc.down))
}

// idle asks, is idle for longer than the NAT remembers, and asks again.
func (s *study) idle(ctx context.Context, sc scenario, clients [][]client) (*runLog, error) {
	log := &runLog{window: window{start: s.site.env.now()}}
	var running sync.WaitGroup
	for _, arm := range clients {
		var tracks []*track
		for _, c := range arm {
			t := new(track)
			tracks = append(tracks, t)
			running.Go(func() { s.visit(ctx, c, s.Length.amount(sc), t) })
		}
		log.arms = append(log.arms, tracks)
	}
	running.Wait()
	log.end = s.site.env.now()
	return log, context.Cause(ctx)
}

// patience is how long a client tries to get an answer after being idle.
const patience = 15 * time.Second

// visit asks n times after being idle, each time until there is an answer. What
// failed before is an attempt of its own.
func (s *study) visit(ctx context.Context, c client, n int, t *track) {
	var ask func() error
	switch c := c.(type) {
	case *wsClient:
		var src *wsSource
		defer func() {
			if src != nil {
				src.close()
			}
		}()
		ask = func() (err error) { src, err = askSocket(ctx, c, src); return err }
	default:
		ask = func() error { return askOnce(ctx, c) }
	}
	if err := ask(); err != nil { // this one makes the connection
		t.add(attempt{opened: s.site.env.now(), ended: s.site.env.now(), cut: true, why: err.Error()})
	}
	for range n {
		if sleep(ctx, s.idleTime()) != nil {
			return
		}
		began := s.site.env.now()
		for ctx.Err() == nil && s.site.env.now()-began < patience {
			a := attempt{opened: began}
			err := ask()
			a.ended = s.site.env.now()
			if err == nil {
				a.first = a.ended
				t.add(a)
				break
			}
			a.cut, a.why = true, err.Error()
			t.add(a)
			_ = sleep(ctx, reopenDelay)
		}
	}
}

// askOnce makes a short call.
func askOnce(ctx context.Context, c client) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	src, err := c.open(ctx, "tokens=1")
	if err != nil {
		return err
	}
	defer src.close()
	if _, err = src.next(); err != nil {
		return err
	}
	if _, err = src.next(); !errors.Is(err, io.EOF) { // so that the connection is kept
		return err
	}
	return nil
}

// askSocket sends a message over an open WebSocket, or a new one, and waits for
// the answer. It returns the socket if it can be used again.
func askSocket(ctx context.Context, c *wsClient, src *wsSource) (*wsSource, error) {
	if src == nil {
		opening, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		opened, err := c.open(opening, "quiet=1")
		if err != nil {
			return nil, err
		}
		src = opened.(*wsSource)
		src.stop() // it outlives the opening
	}
	limit := time.AfterFunc(askLimit, func() { _ = src.conn.Close() })
	defer limit.Stop()
	err := src.ask()
	if err == nil {
		_, err = src.next()
	}
	if err != nil {
		src.close()
		return nil, err
	}
	return src, nil
}
