// SPDX-License-Identifier: Apache-2.0

//go:build linux

package deploy

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

// upgradeCount is small where each change waits for it; 20 are the aim (docs/deploy.md).
var upgradeCount = flag.Int("upgrades", 5, "how often TestUpgradesLoseNothing replaces the process")

const perUpgrade = 10 // streams more, and as many WebSockets, before each

// lines is an upstream of endless streams, WebSockets that echo, and short answers.
func lines(t *testing.T, finish <-chan struct{}) *httptest.Server {
	t.Helper()
	up := websocket.Upgrader{}
	mux := http.NewServeMux()
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "short") })
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		for {
			kind, msg, err := c.ReadMessage()
			if err != nil || c.WriteMessage(kind, msg) != nil {
				return
			}
		}
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			if _, err := fmt.Fprintf(w, "data: %d\n\n", n); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			case <-finish:
				_, _ = io.WriteString(w, "data: last\n\n")
				return
			}
		}
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

// readStream holds a stream's events against their numbers, to the last.
func readStream(resp *http.Response) error {
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	for n := 0; in.Scan(); {
		value, ok := strings.CutPrefix(in.Text(), "data: ")
		switch {
		case !ok: // between events
		case value == "last":
			_, err := io.Copy(io.Discard, resp.Body) // the end must be clean
			return err
		case value != strconv.Itoa(n):
			return fmt.Errorf("event %q, want %d", value, n)
		default:
			n++
		}
	}
	return errors.Join(errors.New("the stream was cut"), in.Err())
}

// echo sends one message and wants it back.
func echo(c *websocket.Conn, text string) error {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := c.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		return err
	}
	if _, got, err := c.ReadMessage(); err != nil || string(got) != text {
		return fmt.Errorf("echo %q: %w", got, err)
	}
	return nil
}

// A loadgen keeps asking while processes come and go.
type loadgen struct {
	base  string
	mu    sync.Mutex // guards the fields below
	asked int
	wrong []error
}

func (l *loadgen) run(ctx context.Context, client *http.Client) {
	for ctx.Err() == nil {
		err := l.ask(client)
		l.mu.Lock()
		if l.asked++; err != nil {
			l.wrong = append(l.wrong, err)
		}
		l.mu.Unlock()
	}
}

// ask posts, so that the client does not try again by itself.
func (l *loadgen) ask(client *http.Client) error {
	resp, err := client.Post(l.base+"/up/short", "text/plain", io.MultiReader(strings.NewReader("question")))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "short" {
		return fmt.Errorf("%s %q: %w", resp.Status, body, err)
	}
	return nil
}

// TestUpgradesLoseNothing replaces the process again and again under live streams,
// WebSockets and requests on new and on kept connections.
func TestUpgradesLoseNothing(t *testing.T) {
	finish := make(chan struct{})
	up := lines(t, finish)
	ports := testenv.FreePorts(t, 2)
	file := configure(t, fmt.Sprintf("listen: {address: '127.0.0.1:%d'}\nadmin: {address: '127.0.0.1:%d'}\nupstreams:\n  up: {url: '%s'}\n", ports[0], ports[1], up.URL))
	m := newManager(t)
	cmd := exec.Command(program(t), "run", "-c", file)
	cmd.Env = []string{"NOTIFY_SOCKET=" + m.path, "HOME=" + t.TempDir()}
	launch(t, cmd, ports[0])
	m.next("READY")
	base := fmt.Sprintf("http://127.0.0.1:%d", ports[0])

	ctx, stop := context.WithCancel(t.Context())
	load := &loadgen{base: base}
	var asking, streaming sync.WaitGroup
	fresh, kept := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, &http.Client{Transport: &http.Transport{}}
	asking.Go(func() { load.run(ctx, fresh) })
	asking.Go(func() { load.run(ctx, kept) })
	defer asking.Wait()
	defer stop()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	cut := make(chan error, perUpgrade**upgradeCount)
	var sockets []*websocket.Conn
	pids := []int{cmd.Process.Pid}
	for range *upgradeCount {
		for range perUpgrade {
			resp, err := client.Get(base + "/up/stream")
			if err != nil {
				t.Fatal(err)
			}
			streaming.Go(func() { cut <- readStream(resp) })
			c, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(base, "http")+"/up/socket", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			sockets = append(sockets, c)
		}
		if out, err := exec.CommandContext(t.Context(), program(t), "upgrade", "-c", file).CombinedOutput(); err != nil {
			t.Fatalf("upgrade: %v\n%s", err, out)
		}
		value, _ := m.next("MAINPID")
		pid, err := strconv.Atoi(value)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	for i, c := range sockets {
		if err := echo(c, strconv.Itoa(i)); err != nil {
			t.Errorf("WebSocket %d: %v", i, err)
		}
	}
	stop()
	asking.Wait()
	kept.CloseIdleConnections()
	if load.asked < *upgradeCount || len(load.wrong) > 0 {
		t.Errorf("%d of %d requests failed: %v", len(load.wrong), load.asked, errors.Join(load.wrong...))
	}
	close(finish)
	streaming.Wait()
	close(cut)
	for err := range cut {
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range sockets {
		_ = c.Close()
	}
	for _, pid := range pids[:*upgradeCount] { // each ends by itself
		untilGone(t, pid)
	}
	signalTo(t, pids[*upgradeCount], syscall.SIGTERM)
	untilGone(t, pids[*upgradeCount])
	if c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://")); err == nil {
		_ = c.Close()
		t.Error("somebody still listens")
	}
	t.Logf("%d upgrades under %d streams and %d WebSockets; %d short requests", *upgradeCount, len(sockets), len(sockets), load.asked)
}
