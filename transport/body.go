// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// replayBytes is how much of an upload is kept so that a request of which nothing
// reached the wire can move to another connection. The standard library reads a
// body ahead of its first write by one copy buffer, 32 KiB.
const replayBytes = 64 << 10

// errBodyTooLong says that a body has been read too far to be sent once more.
var errBodyTooLong = errors.New("the request body has been read beyond what is kept of it")

// An upload is the app's request body, which each attempt reads from its start
// through a view of its own. What the app has not sent yet is never waited for
// twice: views take turns.
type upload struct {
	again func() (io.ReadCloser, error) // the caller's own way to a body from its start, http.Request.GetBody; nil = none
	begun bool                          // a view was given out; owned by whoever calls view

	over     atomic.Bool // prefix does not hold all that was read, or is not needed
	progress *progress

	mu     sync.Mutex // held while reading, which may wait for the app; guards the fields below
	src    io.ReadCloser
	total  int    // bytes read from src
	prefix []byte // all of them, unless over
	end    error  // what src ended with
}

// view returns a reader from the start.
func (u *upload) view() (io.ReadCloser, error) {
	if u.again != nil {
		src := u.src
		if u.begun {
			var err error
			if src, err = u.again(); err != nil {
				return nil, err
			}
		}
		u.begun = true
		return &keptView{src, u.progress}, nil
	}
	if u.over.Load() {
		return nil, errBodyTooLong
	}
	return &uploadView{u: u}, nil
}

// settle ends the keeping: the request is on its way. It must not wait for a
// Read, which may be waiting for the app.
func (u *upload) settle() { u.over.Store(true) }

type uploadView struct {
	u   *upload
	pos int
}

func (v *uploadView) Read(p []byte) (int, error) {
	u := v.u
	u.progress.taking()
	u.mu.Lock()
	defer u.mu.Unlock()
	if v.pos < u.total {
		if len(u.prefix) < u.total {
			return 0, errBodyTooLong // an older view has read on meanwhile
		}
		n := copy(p, u.prefix[v.pos:])
		v.pos += n
		u.progress.gave()
		return n, nil
	}
	if u.end != nil {
		return 0, u.end
	}
	n, err := u.src.Read(p)
	if err != nil {
		u.end = err
	}
	u.total += n
	v.pos += n
	if u.total > replayBytes {
		u.over.Store(true)
	}
	if u.over.Load() {
		u.prefix = nil
	} else {
		u.prefix = append(u.prefix, p[:n]...)
	}
	if n > 0 && err == nil {
		u.progress.gave()
	}
	return n, err
}

func (v *uploadView) Close() error { return nil }

// A keptView is a body that its owner can give again.
type keptView struct {
	io.ReadCloser
	progress *progress
}

func (v *keptView) Read(p []byte) (int, error) {
	v.progress.taking()
	n, err := v.ReadCloser.Read(p)
	if n > 0 && err == nil {
		v.progress.gave()
	}
	return n, err
}

// A progress measures how long the upstream takes no bytes: from the end of one
// Read of the body to the beginning of the next. Time in which the app has
// nothing to give does not count.
type progress struct {
	limit time.Duration
	fail  func()
	mu    sync.Mutex // guards timer
	timer *time.Timer
	over  bool
}

func (p *progress) gave() {
	if p.limit <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over:
	case p.timer == nil:
		p.timer = time.AfterFunc(p.limit, p.fail)
	default:
		p.timer.Reset(p.limit)
	}
}

func (p *progress) taking() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
}

// stop ends the measuring for good: an answer has come.
func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.timer != nil {
		p.timer.Stop()
	}
}
