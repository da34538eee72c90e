// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// A socketServer is a WebSocket server that counts pings, and can stop to read.
type socketServer struct {
	*httptest.Server
	pings  atomic.Int32
	frozen chan struct{} // closed: it reads no more
}

func newSocketServer(t *testing.T) *socketServer {
	s := &socketServer{frozen: make(chan struct{})}
	stop := make(chan struct{})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		c.SetPingHandler(func(payload string) error {
			s.pings.Add(1)
			select {
			case <-s.frozen:
				<-stop
				return errors.New("the test is over")
			default:
			}
			return c.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(patience))
		})
		for {
			kind, message, err := c.ReadMessage()
			if err != nil {
				return
			}
			if err := c.WriteMessage(kind, message); err != nil {
				return
			}
		}
	}))
	t.Cleanup(func() {
		close(stop)
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *socketServer) addr() string { return s.Listener.Addr().String() }

const quickBeats = "upstreams:\n  up: {url: 'http://UPSTREAM', heartbeat: {mode: fixed, min_interval: 1s, max_interval: 1s, timeout: 1s}}\n"

// socket opens a WebSocket through r, and counts the pings that come to the app.
func (r *rig) socket(pings *atomic.Int32) *websocket.Conn {
	r.t.Helper()
	c, _, err := websocket.DefaultDialer.Dial("ws://"+r.addr+"/up/v1/realtime", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	c.SetPingHandler(func(payload string) error {
		pings.Add(1)
		return c.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(patience))
	})
	_ = c.SetReadDeadline(time.Now().Add(3 * patience))
	return c
}

// TestSilentSocketsAreKept leaves a WebSocket alone: both sides are pinged, both answer,
// and the list of streams shows it.
func TestSilentSocketsAreKept(t *testing.T) {
	up := newSocketServer(t)
	r := start(t, up.addr(), quickBeats)
	var pings atomic.Int32
	c := r.socket(&pings)
	read := make(chan error, 1)
	go func() {
		_, _, err := c.ReadMessage() // pings are answered while it reads
		read <- err
	}()
	for deadline := time.Now().Add(patience); ; {
		list := r.get("/v1/streams")
		if pings.Load() >= 2 && up.pings.Load() >= 2 && strings.Contains(list, `"upstream_heartbeat"`) && strings.Contains(list, `"verdict": "thinking"`) &&
			strings.Contains(list, `"interval": "1s"`) && strings.Contains(list, `"rtt"`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d pings to the app, %d to the upstream, list %s", pings.Load(), up.pings.Load(), list)
		}
	}
	r.metric(`warmwire_heartbeat_interval_seconds{upstream="up"} 1`)
	if err := c.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
	if status, body := r.post("/v1/tune?upstreams.up.heartbeat.mode=off"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	before := up.pings.Load()
	go func() {
		_, _, err := c.ReadMessage()
		read <- err
	}()
	quiet := time.NewTimer(2500 * time.Millisecond)
	defer quiet.Stop()
	<-quiet.C
	if n := up.pings.Load() - before; n > 1 { // one may have been on its way
		t.Errorf("%d pings after they were turned off", n)
	}
	_ = c.Close()
	<-read
	page := r.get("/metrics")
	for _, want := range []string{`warmwire_heartbeat_probes_total{side="app",upstream="up"} `, `warmwire_heartbeat_rtt_seconds_count{upstream="up"} `} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestADeadUpstreamIsToldToTheApp freezes the upstream while it still accepts connections:
// the app is closed with 1012 and a reason within seconds.
func TestADeadUpstreamIsToldToTheApp(t *testing.T) {
	up := newSocketServer(t)
	r := start(t, up.addr(), quickBeats)
	var pings atomic.Int32
	c := r.socket(&pings)
	read := make(chan error, 1)
	go func() {
		_, _, err := c.ReadMessage()
		read <- err
	}()
	for up.pings.Load() < 2 {
		if list := r.get("/v1/streams"); list == "[]\n" {
			t.Fatal("it has ended")
		}
	}
	close(up.frozen)
	begun := time.Now()
	err := <-read
	var ce *websocket.CloseError
	if !errors.As(err, &ce) || ce.Code != websocket.CloseServiceRestart || !strings.Contains(ce.Text, "Warmwire") {
		t.Errorf("the app got %v, want 1012", err)
	}
	if took := time.Since(begun); took < 3*time.Second || took > 15*time.Second {
		t.Errorf("after %v", took)
	}
	r.metric(`warmwire_interruptions_total{cause="upstream_dead_flow",upstream="up"} 1`)
	r.metric(`warmwire_heartbeat_verdicts_total{upstream="up",verdict="dead_flow"} 1`)
}
