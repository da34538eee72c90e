// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// An Arm is one of the ways that are compared.
type Arm struct {
	Name  string // short, for tables and JSON
	About string
	make  func(*env) client

	// Of heartbeats only: whether its server speaks TLS, and the upstream and its
	// heartbeat through Warmwire, none if it goes direct.
	tls                 bool
	upstream, heartbeat string
}

// Arms returns the ways: direct ones with the limits of the source study and one
// without, then those through Warmwire, whose clients have no limit of their own.
func Arms() []Arm {
	return []Arm{
		{Name: "tcp", About: "direct, HTTP/1.1, no limit: what the network alone does", make: plainDirect(0)},
		{Name: "tcp 1s", About: "direct, HTTP/1.1, a read may take 1 s", make: plainDirect(time.Second)},
		{Name: "h2 3+1.5", About: "direct, HTTP/2 over TLS, PING after 3 s of silence, 1.5 s for its answer", make: h2Direct(3*time.Second, 1500*time.Millisecond)},
		{Name: "h2 1+1", About: "direct, HTTP/2 over TLS, PING after 1 s of silence, 1 s for its answer", make: h2Direct(time.Second, time.Second)},
		{Name: "ws 3/1.5", About: "direct, WebSocket, ping every 3 s, 1.5 s for its pong", make: wsDirect(3*time.Second, 1500*time.Millisecond)},
		{Name: "ww h1", About: "through Warmwire, HTTP/1.1 upstream", make: throughHTTP("plain")},
		{Name: "ww h2", About: "through Warmwire, HTTP/2 over TLS upstream", make: throughHTTP("secure")},
		{Name: "ww ws", About: "through Warmwire, WebSocket, whose client sends no ping", make: throughWS("plain")},
	}
}

// An env is what clients need to know of the lab.
type env struct {
	dial          func(ctx context.Context, network, addr string) (net.Conn, error) // from the client's host
	plain, secure string                                                            // host:port of the server
	warmwire      string                                                            // host:port of the Warmwire beside the client
	admin         string                                                            // and of its metrics
	roots         *tls.Config
	now           func() time.Duration // since the epoch of the server's stamps
}

// A frame is a token as it came.
type frame struct {
	n    int
	sent time.Duration
}

// A client opens streams one after another and may keep its connection.
type client interface {
	open(ctx context.Context, query string) (source, error)
	close() // its connections
}

// A source is one open stream.
type source interface {
	next() (frame, error)
	close()
	// heard is when the last sign of life that is no frame came, pings how many
	// were sent and late how many were not answered in time.
	heartbeat() (heard time.Duration, pings, late int)
}

// askLimit is how long a client waits for the answer to a short call.
const askLimit = 10 * time.Second

// errLimit is the end of a stream by its client's own limit.
var errLimit = errors.New("the client's limit passed")

func parseFrame(b []byte) (frame, error) {
	n, rest, _ := bytes.Cut(b, []byte(" "))
	sent, _, _ := bytes.Cut(rest, []byte(" "))
	number, err := strconv.Atoi(string(n))
	stamp, err2 := strconv.ParseInt(string(sent), 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return frame{}, fmt.Errorf("the stream is damaged: %w", err)
	}
	return frame{number, time.Duration(stamp)}, nil
}

// limited is a connection whose reads may take only so long each.
type limited struct {
	net.Conn
	limit time.Duration
}

func (c limited) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// An httpClient streams over net/http.
type httpClient struct {
	transport *http.Transport
	url       string
}

func plainDirect(limit time.Duration) func(*env) client {
	return func(e *env) client {
		dial := e.dial
		if limit > 0 {
			dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := e.dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				return limited{c, limit}, nil
			}
		}
		return &httpClient{&http.Transport{DialContext: dial, DisableCompression: true}, "http://" + e.plain + "/stream"}
	}
}

func h2Direct(after, limit time.Duration) func(*env) client {
	return func(e *env) client {
		t := &http.Transport{DialContext: e.dial, TLSClientConfig: e.roots.Clone(), DisableCompression: true,
			Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{SendPingTimeout: after, PingTimeout: limit}}
		t.Protocols.SetHTTP2(true)
		return &httpClient{t, "https://" + e.secure + "/stream"}
	}
}

func throughHTTP(upstream string) func(*env) client {
	return func(e *env) client {
		return &httpClient{&http.Transport{DialContext: e.dial, DisableCompression: true}, "http://" + e.warmwire + "/" + upstream + "/stream"}
	}
}

func (c *httpClient) close() { c.transport.CloseIdleConnections() }

func (c *httpClient) open(ctx context.Context, query string) (source, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"?"+query, strings.NewReader(`{"stream":true}`))
	if err != nil {
		cancel()
		return nil, err
	}
	resp, err := c.transport.RoundTrip(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("status %s", resp.Status), resp.Body.Close())
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &eventSource{body: resp.Body, lines: bufio.NewScanner(resp.Body), cancel: cancel}, nil
}

// An eventSource reads the frames of an event stream.
type eventSource struct {
	body   io.ReadCloser
	lines  *bufio.Scanner
	cancel func()
}

func (s *eventSource) heartbeat() (time.Duration, int, int) { return 0, 0, 0 }

func (s *eventSource) close() {
	s.cancel()
	_ = s.body.Close()
}

func (s *eventSource) next() (frame, error) {
	for s.lines.Scan() {
		if data, ok := bytes.CutPrefix(s.lines.Bytes(), []byte("data: ")); ok {
			return parseFrame(data)
		}
	}
	err := s.lines.Err()
	switch {
	case err == nil:
		return frame{}, io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return frame{}, errLimit
	}
	return frame{}, err
}

// A wsClient streams over WebSockets.
type wsClient struct {
	e            *env
	url          string
	every, limit time.Duration // of pings; 0 means none
}

func wsDirect(every, limit time.Duration) func(*env) client {
	return func(e *env) client { return &wsClient{e, "ws://" + e.plain + "/ws", every, limit} }
}

func throughWS(upstream string) func(*env) client {
	return func(e *env) client { return &wsClient{e: e, url: "ws://" + e.warmwire + "/" + upstream + "/ws"} }
}

func (c *wsClient) close() {}

func (c *wsClient) open(ctx context.Context, query string) (source, error) {
	// The handshake takes no notice of the end of a context without a deadline.
	d := websocket.Dialer{NetDialContext: c.e.dial, HandshakeTimeout: askLimit}
	conn, resp, err := d.DialContext(ctx, c.url+"?"+query, nil)
	if err != nil {
		if resp != nil {
			err = fmt.Errorf("%w: status %s", err, resp.Status)
		}
		return nil, err
	}
	s := &wsSource{conn: conn, now: c.e.now, every: c.every, limit: c.limit, pongs: make(chan struct{}, 1), done: make(chan struct{})}
	conn.SetPongHandler(func(string) error {
		s.heard.Store(int64(s.now()))
		select {
		case s.pongs <- struct{}{}:
		default:
		}
		return nil
	})
	s.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	if c.every > 0 {
		s.beating.Go(s.beat)
	}
	if strings.Contains(query, speaking) {
		s.beating.Go(s.speak)
	}
	return s, nil
}

type wsSource struct {
	conn         *websocket.Conn
	now          func() time.Duration
	every, limit time.Duration
	stop         func() bool
	pongs        chan struct{}
	done         chan struct{}
	once         sync.Once
	beating      sync.WaitGroup

	heard, pings, late atomic.Int64
	failed             atomic.Bool // by a heartbeat
}

// beat pings and closes the connection when a pong does not come in time.
func (s *wsSource) beat() {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.done:
			return
		}
		select { // a pong that nobody waited for
		case <-s.pongs:
		default:
		}
		s.pings.Add(1)
		deadline := time.Now().Add(s.limit)
		err := s.conn.WriteControl(websocket.PingMessage, nil, deadline)
		limit := time.NewTimer(time.Until(deadline))
		select {
		case <-s.pongs:
		case <-limit.C:
			s.late.Add(1)
			err = errLimit
		case <-s.done:
		}
		limit.Stop()
		if errors.Is(err, errLimit) {
			s.failed.Store(true)
			_ = s.conn.Close()
			return
		}
	}
}

// speaking in a query makes the app speak as well.
const speaking = "speak=1"

// speak says something again and again, as a microphone does. That nobody takes it is
// of no concern to it.
func (s *wsSource) speak() {
	tick := time.NewTicker(speakEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.done:
			return
		}
		if s.ask() != nil {
			return
		}
	}
}

// speakEvery is slower than audio: it is about silence, not about bytes.
const speakEvery = 500 * time.Millisecond

func (s *wsSource) heartbeat() (time.Duration, int, int) {
	return time.Duration(s.heard.Load()), int(s.pings.Load()), int(s.late.Load())
}

func (s *wsSource) close() {
	s.once.Do(func() { close(s.done) })
	s.stop()
	_ = s.conn.Close()
	s.beating.Wait()
}

func (s *wsSource) next() (frame, error) {
	_, b, err := s.conn.ReadMessage()
	if err != nil {
		if s.failed.Load() {
			return frame{}, errLimit
		}
		return frame{}, err
	}
	return parseFrame(b)
}

// ask sends a message, on a quiet stream.
func (s *wsSource) ask() error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(askLimit)); err != nil {
		return err
	}
	return s.conn.WriteMessage(websocket.TextMessage, []byte("next"))
}
