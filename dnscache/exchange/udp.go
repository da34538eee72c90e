// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	// maxSends bounds how often a question goes out over UDP.
	maxSends = 8
	// maxForged is how many datagrams with the wrong id, question or case one
	// socket takes before the question goes on over TCP, where an answer cannot
	// be forged from outside. Guess: far more than a path duplicates.
	maxForged = 100
	// udpBuffer is more than the size that we allow; what is longer is cut,
	// does not parse, and is asked for again over TCP.
	udpBuffer = 4096
)

// A datagram asks over UDP, each time from a fresh socket with a fresh id, and
// over TCP what UDP cannot carry.
type datagram struct {
	d    *dialer
	over *stream
}

func newUDP(d *dialer, closing context.Context) *datagram {
	return &datagram{d: d, over: newStream(d, closing)}
}

func (u *datagram) close() { u.over.close() }

var errUseTCP = errors.New("the answer does not fit into a datagram")

// A race is one question on its way, over as many sockets as it took.
type race struct {
	u       *datagram
	q       *query
	addrs   []string
	results chan result
	suspect chan suspect // holds one once UDP is not to be trusted
	running sync.WaitGroup

	// Owned by run.
	sent, pending int
	onTCP         bool
	fallback      *reply // what to make do with if TCP does not work
	first         error
}

// A suspect is what may be an answer or a forgery. Its reply is nil if there is
// nothing to make do with.
type suspect struct{ r *reply }

type result struct {
	r   reply
	err error
	tcp bool
}

func (u *datagram) ask(ctx context.Context, q *query) (reply, error) {
	addrs, err := u.d.addrs(ctx)
	if err != nil {
		return reply{}, err
	}
	race := &race{u: u, q: q, results: make(chan result, maxSends+1), suspect: make(chan suspect, 1)}
	for _, addr := range addrs {
		race.addrs = append(race.addrs, addr.String())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer race.running.Wait()
	defer cancel()
	return race.run(ctx)
}

func (c *race) run(ctx context.Context) (reply, error) {
	again := time.NewTimer(c.u.d.cfg.Retransmit)
	defer again.Stop()
	c.send(ctx)
	for {
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.Canceled) {
				c.u.d.forget() // nobody is there any more
			}
			return reply{}, context.Cause(ctx)
		case <-again.C:
			if c.fallback != nil {
				return *c.fallback, nil // TCP is not answered either
			}
			c.send(ctx)
			again.Reset(c.u.d.cfg.Retransmit)
		case s := <-c.suspect:
			if c.fallback == nil {
				c.fallback = s.r
			}
			c.tcp(ctx)
			again.Reset(c.u.d.cfg.Retransmit)
		case got := <-c.results:
			c.pending--
			switch {
			case got.err == nil:
				return got.r, nil
			case got.tcp && c.fallback != nil: // refused
				return *c.fallback, nil
			case errors.Is(got.err, errUseTCP):
				c.tcp(ctx)
			case c.first == nil:
				c.first = got.err
			}
			if c.pending == 0 && !c.onTCP && c.sent < len(c.addrs) {
				c.send(ctx) // an address refused: no need to wait
			}
			if c.pending == 0 {
				c.u.d.forget()
				return reply{}, c.first
			}
		}
	}
}

// send asks the next address over UDP, unless TCP has been found necessary.
func (c *race) send(ctx context.Context) {
	if c.onTCP || c.sent >= maxSends {
		return
	}
	addr := c.addrs[c.sent%len(c.addrs)]
	c.sent++
	c.pending++
	c.running.Go(func() {
		r, err := c.attempt(ctx, addr)
		c.results <- result{r: r, err: err}
	})
}

func (c *race) tcp(ctx context.Context) {
	if c.onTCP {
		return
	}
	c.onTCP = true
	c.pending++
	c.running.Go(func() {
		r, err := c.u.over.ask(ctx, c.q)
		c.results <- result{r: r, err: err, tcp: true}
	})
}

// attempt sends one datagram and waits until ctx ends for its answer.
func (c *race) attempt(ctx context.Context, addr string) (reply, error) {
	conn, err := c.u.d.cfg.Dial(ctx, "udp", addr)
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	id := randomID()
	if _, err := conn.Write(c.q.withID(id, 0)); err != nil {
		return reply{}, err
	}
	return c.listen(conn, id)
}

func (c *race) listen(conn net.Conn, id uint16) (reply, error) {
	buffer := make([]byte, udpBuffer)
	for forged := 0; ; forged++ {
		n, err := conn.Read(buffer)
		if err != nil {
			return reply{}, err
		}
		message := buffer[:n]
		match := c.q.fits(message, id)
		if match == matchExactly {
			if truncated(message) {
				return reply{}, errUseTCP
			}
			r, err := c.q.parse(message)
			if err != nil {
				return reply{}, fmt.Errorf("%w: %w", errUseTCP, err)
			}
			return r, nil
		}
		// What is right but for the case may come from a server that does not
		// keep it, or from a forger: TCP tells them apart.
		// A server with neither is trusted as far as id and port go.
		if match == matchLoosely || forged == maxForged {
			s := suspect{}
			if match == matchLoosely && !truncated(message) {
				if r, err := c.q.parse(message); err == nil {
					s.r = &r
				}
			}
			select {
			case c.suspect <- s:
			default:
			}
		}
		if forged == maxForged {
			return reply{}, fmt.Errorf("%w: %d datagrams did not fit the question", errBadAnswer, forged)
		}
	}
}
