// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"github.com/warmwire/warmwire/transport/fault"
)

// Types of the peer's one-way streams (RFC 9114 §6.2, RFC 9204 §4.2).
const (
	streamControl = 0x00
	streamPush    = 0x01
	streamEncoder = 0x02
	streamDecoder = 0x03
)

// control is our control stream.
type control struct {
	c *Conn

	mu  sync.Mutex // guards the field below
	str *quic.SendStream
}

// greet opens our control stream with SETTINGS (RFC 9114 §6.2.1). QPACK keeps no
// table here, which is its default, and needs no streams of its own.
func (c *Conn) greet() {
	str, err := c.qc.OpenUniStream()
	if err != nil {
		return // the connection is at its end, or the peer allows no stream: it will say so
	}
	value := quicvarint.Append(quicvarint.Append(nil, settingMaxFieldSection), maxHeadBytes)
	b := quicvarint.Append(nil, streamControl)
	b = append(appendFrame(b, frameSettings, uint64(len(value))), value...)
	_, _ = str.Write(b) // its error is the connection's end
	c.control.mu.Lock()
	c.control.str = str
	c.control.mu.Unlock()
}

// tell writes a frame that nobody waits for; it says whether there was room.
func (t *control) tell(frame []byte) bool {
	t.mu.Lock()
	str := t.str
	t.mu.Unlock()
	return str != nil && str.TryWriteAll(frame) == nil
}

// acceptStreams takes the peer's streams until the connection ends. In early data
// that is refused the streams begin anew, and so does this.
func (c *Conn) acceptStreams() {
	var seen seenStreams
	for {
		str, err := c.qc.AcceptUniStream(c.ctx)
		if err != nil {
			return
		}
		c.work.Go(func() { c.serveStream(str, &seen) })
	}
}

// seenStreams are the types of which a peer has one at most.
type seenStreams struct {
	mu  sync.Mutex // guards the field below
	had [streamDecoder + 1]bool
}

func (s *seenStreams) again(kind uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.had[kind]
	s.had[kind] = true
	return had
}

// serveStream reads one of the peer's streams to its end.
func (c *Conn) serveStream(str *quic.ReceiveStream, seen *seenStreams) {
	br := bufio.NewReaderSize(str, 256)
	kind, err := quicvarint.Read(br)
	if err != nil {
		return // RFC 9114 §6.2: it may end before its type
	}
	switch {
	case kind == streamPush:
		c.violated(violation(codeID, "it pushes although we said no"))
		return
	case kind > streamDecoder:
		str.CancelRead(quic.StreamErrorCode(codeStreamCreation)) // RFC 9114 §6.2: of no known use
		return
	case seen.again(kind):
		c.violated(violation(codeStreamCreation, "a second stream of type %d", kind))
		return
	case kind == streamControl:
		err = c.readControl(br)
	case kind == streamEncoder:
		// Our table has no room, so all it may say is that it uses none (RFC 9204 §4.3.1).
		err = readNothing(br, 0x20, codeQPACKEncoder)
	default:
		_, err = io.Copy(io.Discard, br) // what a decoder says means nothing without a table
	}
	var wrong *connError
	var reset *quic.StreamError
	switch {
	case errors.As(err, &wrong):
		c.violated(wrong)
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &reset): // not the connection's own end
		c.violated(violation(codeClosedCritical, "it ended a stream of type %d, which a connection needs", kind))
	}
}

// readNothing reads a stream on which nothing but the byte b may come.
func readNothing(br *bufio.Reader, b byte, code errCode) error {
	for {
		switch got, err := br.ReadByte(); {
		case err != nil:
			return err
		case got != b:
			return violation(code, "an instruction for a table that we do not have")
		}
	}
}

// readControl reads the peer's control stream.
func (c *Conn) readControl(br *bufio.Reader) error {
	for first := true; ; first = false {
		kind, err := quicvarint.Read(br)
		if err != nil {
			return err
		}
		length, err := quicvarint.Read(br)
		if err != nil {
			return err
		}
		if first != (kind == frameSettings) {
			if first {
				return violation(codeMissingSettings, "its first frame is not SETTINGS")
			}
			return violation(codeFrameUnexpected, "a second SETTINGS")
		}
		switch kind {
		case frameSettings, frameGoAway, frameCancelPush:
			err = c.onControl(br, kind, length)
		case frameData, frameHeaders, framePushPromise, frameMaxPushID, framePriorityUpdate, framePriorityPush:
			return violation(codeFrameUnexpected, "a frame of type %#x on the control stream", kind)
		default:
			if ofHTTP2(kind) {
				return violation(codeFrameUnexpected, "a frame of HTTP/2, type %#x", kind)
			}
			_, err = io.CopyN(io.Discard, br, int64(length))
		}
		if err != nil {
			return err
		}
	}
}

// onControl takes a frame that means something.
func (c *Conn) onControl(br *bufio.Reader, kind, length uint64) error {
	if length > maxSettings {
		return violation(codeExcessiveLoad, "a frame of %d bytes on the control stream", length)
	}
	p := make([]byte, length)
	if _, err := io.ReadFull(br, p); err != nil {
		return err
	}
	switch kind {
	case frameSettings:
		s, err := parseSettings(p)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.peer = s
		c.mu.Unlock()
		c.closeOnce(c.ready)
		c.changed()
		return nil
	case frameGoAway:
		id, err := parseID(p)
		if err != nil {
			return err
		}
		return c.onGoAway(id)
	}
	return violation(codeID, "it takes back a push that there was not") // RFC 9114 §7.2.3
}

// onGoAway takes no more requests; those at or above id were not processed and
// never will be (RFC 9114 §5.2).
func (c *Conn) onGoAway(id uint64) error {
	if id%4 != 0 {
		return violation(codeID, "GOAWAY with the id of no request")
	}
	c.mu.Lock()
	if c.goneAway && id > c.lastID {
		c.mu.Unlock()
		return violation(codeID, "GOAWAY with a higher id than before")
	}
	c.goneAway, c.lastID = true, id
	if c.closing == nil { // before anybody who is handed back can ask again
		c.closing = &fault.Error{In: "send", Kind: kindClosed, Err: errors.New("the upstream is closing the connection (GOAWAY)")}
	}
	var handed []*stream
	for sid, s := range c.streams {
		if uint64(sid) >= id {
			handed = append(handed, s)
		}
	}
	c.mu.Unlock()
	for _, s := range handed {
		s.handBack()
	}
	c.mu.Lock()
	c.restLocked()
	c.mu.Unlock()
	c.changed()
	return nil
}

// handBack ends s as provably unprocessed, unless its answer has begun against
// the rule.
func (s *stream) handBack() {
	if s.started.Load() {
		return
	}
	s.terminate(fault.Unsent(kindClosed, "the upstream closed the connection before this request (GOAWAY)"), codeCancelled)
}

// violated ends the connection for a fault of the peer's.
func (c *Conn) violated(err *connError) {
	c.fail(&fault.Error{In: "wait", Kind: kindProtocol, Err: fmt.Errorf("the upstream breaks HTTP/3: %w", err)}, err.code)
}
