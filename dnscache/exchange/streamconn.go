// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A streamConn is one connection with many questions under way, answered in any
// order (RFC 7766 §7). Two goroutines own its halves: read and write.
type streamConn struct {
	net.Conn
	writeLimit time.Duration
	outgoing   chan []byte   // room for every question that may be in flight
	done       chan struct{} // closed when the connection has failed

	mu      sync.Mutex // guards the fields below
	waiters map[uint16]*waiter
	err     error  // why it failed
	heard   uint64 // messages
	useful  uint64 // of them, those that were waited for
	retired bool   // takes no more questions; closes with the last of its waiters
	idle    time.Duration
	timer   *time.Timer // runs while there is no waiter
}

// A waiter is one question on one connection.
type waiter struct {
	q      *query
	id     uint16
	answer chan []byte // has room for the one answer
	used   bool        // the connection had been heard before
	heard  uint64      // messages of the connection when the question was sent
}

func newStreamConn(conn net.Conn, cfg Config) *streamConn {
	return &streamConn{
		Conn:       conn,
		writeLimit: cfg.Timeout,
		outgoing:   make(chan []byte, 2*cfg.MaxInFlight),
		done:       make(chan struct{}),
		waiters:    map[uint16]*waiter{},
		idle:       cfg.Idle,
	}
}

// usable reports whether the connection takes questions.
func (c *streamConn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.retired
}

// send hands a question to the writer. The caller forgets the waiter in the end.
func (c *streamConn) send(q *query) (*waiter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.retired {
		return nil, c.lostLocked()
	}
	w := &waiter{q: q, id: randomID(), answer: make(chan []byte, 1), used: c.heard > 0, heard: c.heard}
	for c.waiters[w.id] != nil {
		w.id++ // fewer are in flight than there are ids
	}
	const prefix = 2 // RFC 1035 §4.2.2; in one write with its message, RFC 7766 §8
	message := q.withID(w.id, prefix)
	binary.BigEndian.PutUint16(message, uint16(len(q.message)))
	select {
	case c.outgoing <- message:
	default:
		// Questions given up while the writer is stuck still take room.
		return nil, c.lostLocked()
	}
	c.waiters[w.id] = w
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	return w, nil
}

func (c *streamConn) forget(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiters, w.id)
	c.restLocked()
}

// restLocked decides what becomes of a connection without a question.
func (c *streamConn) restLocked() {
	if len(c.waiters) > 0 || c.err != nil {
		return
	}
	if c.retired {
		c.failLocked(net.ErrClosed)
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(c.idle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.waiters) == 0 {
			c.failLocked(net.ErrClosed)
		}
	})
}

// retire lets the questions under way end, and takes no more.
func (c *streamConn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
	c.restLocked()
}

// keepFor sets the idle time that the server asked for: zero means to close as
// soon as the answers are there (RFC 7828 §3.3.2), and otherwise the client
// should be the one to close, so it does so a little earlier.
func (c *streamConn) keepFor(d time.Duration) {
	if d == 0 {
		c.retire()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = d - min(d/10, time.Second)
}

func (c *streamConn) heardSince(w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard > w.heard
}

func (c *streamConn) lost() *lostError {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lostLocked()
}

func (c *streamConn) lostLocked() *lostError {
	err := c.err
	if err == nil {
		err = net.ErrClosed
	}
	// A retired connection refuses a question before it is sent, which says
	// nothing about the server.
	return &lostError{conn: c, answered: c.useful > 0 || c.retired, err: err}
}

// fail ends the connection at once; all its waiters see done.
func (c *streamConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *streamConn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.timer != nil {
		c.timer.Stop()
	}
	// A close of TLS may wait for a writer that is stuck; this frees it.
	_ = c.SetDeadline(time.Unix(1, 0))
	close(c.done)
}

// write sends what is handed to it until the connection fails, and closes it.
func (c *streamConn) write() {
	defer c.Close()
	for {
		select {
		case <-c.done:
			return
		case message := <-c.outgoing:
			_ = c.SetWriteDeadline(time.Now().Add(c.writeLimit))
			if _, err := c.Write(message); err != nil {
				c.fail(err)
				return
			}
		}
	}
}

// read hands answers to their waiters until the connection fails.
func (c *streamConn) read() {
	r := bufio.NewReader(c.Conn)
	for {
		message, err := readMessage(r)
		if err != nil {
			c.fail(err)
			return
		}
		if err := c.deliver(message); err != nil {
			c.fail(err)
			return
		}
	}
}

func readMessage(r io.Reader) ([]byte, error) {
	var prefix [2]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(prefix[:]))
	if size < headerBytes {
		return nil, fmt.Errorf("%w: a message of %d octets", errBadAnswer, size)
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(r, message); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return message, nil
}

// deliver gives a message to the question that it answers. One that nobody
// waits for any more is dropped; one that answers another question under the id
// of a waiter means that the server mixes things up.
func (c *streamConn) deliver(message []byte) error {
	id := binary.BigEndian.Uint16(message)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard++
	w := c.waiters[id]
	if w == nil {
		return nil
	}
	if w.q.fits(message, id) == matchNone {
		return fmt.Errorf("%w: it is about another question", errBadAnswer)
	}
	select {
	case w.answer <- message:
		c.useful++
	default: // answered twice
	}
	return nil
}
