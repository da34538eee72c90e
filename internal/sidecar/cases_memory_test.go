// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// endless answers each request with a stream that does not end, and tells when it
// could not be written any more.
func endless(t *testing.T) (addr string, gone chan struct{}) {
	gone = make(chan struct{}, 100)
	part := chunk(strings.Repeat("x", 32<<10))
	return testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		if _, err := io.WriteString(c.TCPConn, sse); err != nil {
			return
		}
		for {
			if _, err := io.WriteString(c.TCPConn, part); err != nil {
				gone <- struct{}{}
				return
			}
		}
	}), gone
}

// TestAnAppThatTakesNothingIsCut holds an app that reads the head and then nothing
// beside one that reads: the first is cut and its upstream let go, the second is not.
func TestAnAppThatTakesNothingIsCut(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(proto, func(t *testing.T) {
			addr, gone := endless(t)
			r := start(t, addr, "upstreams:\n  up: {url: 'http://UPSTREAM', buffer: {stall_timeout: 400ms}}\n")
			if proto == "HTTP/1.1" {
				app := r.dial()
				app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
				app.Head()
			} else {
				resp, cancel, err := ask(r)
				defer cancel()
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
			}
			reads := r.dial()
			reads.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
			reads.Head()
			for cut := false; !cut; {
				if _, err := io.CopyN(io.Discard, reads.In, 1<<20); err != nil {
					t.Fatalf("the one that reads: %v", err)
				}
				select {
				case <-gone:
					cut = true
				default:
				}
			}
			r.metric(`warmwire_interruptions_total{cause="buffer_stalled",upstream="up"} 1`)
			if page := r.get("/metrics"); !strings.Contains(page, `warmwire_buffer_pauses_total{upstream="up"} `) { // the one that reads may have some too
				t.Errorf("no pause is counted: %s", page)
			}
			r.metric(`warmwire_requests_total{mode="base_url",outcome="cut_warmwire",upstream="up"} 1`)
			if _, err := io.CopyN(io.Discard, reads.In, 1<<20); err != nil {
				t.Errorf("the one that reads: %v", err)
			}
		})
	}
}

// TestAnAppThatTakesLittleIsNotCut reads so slowly that no write of a whole buffer
// returns within the limit.
func TestAnAppThatTakesLittleIsNotCut(t *testing.T) {
	addr, gone := endless(t)
	r := start(t, addr, "upstreams:\n  up: {url: 'http://UPSTREAM', buffer: {stall_timeout: 2500ms}}\n")
	app := r.dialNarrow()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	app.Head()
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for range 60 {
		<-pace.C
		if _, err := io.CopyN(io.Discard, app.In, 1<<10); err != nil {
			t.Fatalf("an app that reads slowly was cut: %v", err)
		}
	}
	if list := r.get("/v1/streams"); !strings.Contains(list, `"upstream": "up"`) || !strings.Contains(list, `"lag_time"`) || strings.Contains(list, `"lag_bytes": 0`) {
		t.Errorf("its lag is not shown: %s", list)
	}
	select {
	case <-gone:
		t.Error("its upstream was let go")
	default:
	}
}

// TestMemoryIsShared opens more streams than limits.memory has room for: the last
// waits, and goes on when another ends; the running ones stay.
func TestMemoryIsShared(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.SendExact("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
		select {
		case <-end:
		case <-time.After(patience):
		}
	})
	r := start(t, addr, "limits: {memory: 4MiB}\n")
	const records = 4 << 20 / 32 // of connections, 4 KiB each
	const room = (4<<20 - records) / (24 << 10)
	open := func() *testenv.Raw {
		app := r.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
		return app
	}
	var apps []*testenv.Raw
	for range room {
		app := open()
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
			t.Fatalf("stream %d: %q", len(apps), head)
		}
		apps = append(apps, app)
	}
	r.metric(fmt.Sprintf("warmwire_buffer_bytes %g", float64(room*(24<<10)+records)))
	r.metric(fmt.Sprintf("warmwire_buffer_limit_bytes %g", float64(4<<20)))
	late := open()
	_ = late.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if head := late.Head(); head != "" {
		t.Fatalf("one too many: %q", head)
	}
	_ = late.SetReadDeadline(time.Now().Add(patience))
	_ = apps[0].Close()
	if head := late.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Errorf("the one that waited: %q", head)
	}
	for _, app := range append(apps[1:], late) {
		_ = app.Close()
	}
	r.metric("warmwire_buffer_bytes 0")
}

// TestMemoryFollowsAReload lets a waiting request in.
func TestMemoryFollowsAReload(t *testing.T) {
	addr, _ := endless(t)
	r := start(t, addr, "limits: {memory: 4MiB}\n")
	r.write(addr, "limits: {memory: 8MiB}\n")
	if status, body := r.post("/v1/reload"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	r.metric(fmt.Sprintf("warmwire_buffer_limit_bytes %g", float64(8<<20)))
}

// TestAFullSpoolDirIsTold takes the folder away below answers that need it: once it says so,
// however many ask again each second, and they go on.
func TestAFullSpoolDirIsTold(t *testing.T) {
	addr, _ := endless(t)
	dir := t.TempDir() + "/spool"
	r := start(t, addr, "spool_dir: "+dir+"\nupstreams:\n  up: {url: 'http://UPSTREAM', buffer: {policy: spool, stall_timeout: 60s}}\n")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	var apps []*testenv.Raw
	for range 3 {
		app := r.dialNarrow()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
		app.Head()
		apps = append(apps, app)
	}
	const told = "spool_dir takes nothing"
	eventually(t, "it is told", func() bool { return strings.Contains(r.log.String(), told) })
	<-time.NewTimer(1500 * time.Millisecond).C // each has asked again
	if n := strings.Count(r.log.String(), told); n != 1 || !strings.Contains(r.log.String(), "level=WARN msg=\""+told) {
		t.Errorf("told %d times: %s", n, r.log)
	}
	for _, app := range apps {
		if _, err := io.CopyN(io.Discard, app.In, 256<<10); err != nil {
			t.Errorf("an answer was cut: %v", err)
		}
	}
}
