// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/warmwire/warmwire/heartbeat"
	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/transport"
)

// A far server streams over a lab. A request waits for "go" events from its test.
type far struct {
	lab *netlab.Lab
	url string
	tr  *transport.Transport
}

// newFar starts a server on the lab's far host and a transport on the near one.
func newFar(t *testing.T, h2 bool, cfg netlab.Config, handler http.HandlerFunc) *far {
	t.Helper()
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	lab, err := netlab.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	ln, err := lab.Server.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(handler)
	_ = s.Listener.Close() // the machine's own
	s.Listener, s.EnableHTTP2 = ln, h2
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	f := &far{lab: lab, url: "http://" + net.JoinHostPort(lab.Server.Addr4().String(), port)}
	tc := transport.Config{Heartbeat: heartbeat.Config{Silence: time.Second, Patience: 300 * time.Millisecond, DeadAfter: time.Second}}
	if h2 {
		pair, roots := certificate(t, lab.Server.Addr4().AsSlice())
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		s.StartTLS()
		f.url = "https" + f.url[len("http"):]
		tc.Trust = trusting(t, roots)
	} else {
		s.Start()
	}
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	if f.tr, err = transport.New(lab.Client.Dial, tc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.tr.Close)
	return f
}

// open starts a stream and reads its first line.
func (f *far) open(t *testing.T) *http.Response {
	t.Helper()
	req := request(t, http.MethodPost, f.url, "/", nil).WithContext(t.Context()) // silences outlast the usual patience
	resp, err := f.tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return resp
}

// thinking is a server that says one line and no more.
func thinking(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "hello\n")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// A NAT forgets the flow of an open stream and the path lives: that is known
// soon, whatever the stream's protocol, and the next request is not held up.
func TestDeadFlowIsLeft(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := netlab.Link{Delay: 10 * time.Millisecond}
			f := newFar(t, h2, netlab.Config{Up: link, Down: link, NAT: netlab.NAT{On: true}}, thinking)
			resp := f.open(t)
			if err := f.lab.ForgetFlows(); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			timer := time.AfterFunc(30*time.Second, func() { _ = resp.Body.Close() })
			defer timer.Stop()
			_, err := io.ReadAll(resp.Body)
			took := time.Since(start)
			var e *transport.Error
			if !errors.As(err, &e) || e.Code() != "upstream_dead_flow" || !e.RequestSent() {
				t.Errorf("after %v: %v", took, err)
			}
			t.Logf("left after %v", took)
			_ = resp.Body.Close()
			again := f.open(t)
			_ = again.Body.Close()
		})
	}
}

// A peer that thinks is waited for: its kernel, or its HTTP/2, answers.
func TestThinkingIsNoDeath(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := netlab.Link{Delay: 10 * time.Millisecond}
			spoke := make(chan struct{})
			f := newFar(t, h2, netlab.Config{Up: link, Down: link}, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "hello\n")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-spoke:
					_, _ = io.WriteString(w, "world\n")
				case <-r.Context().Done():
				}
			})
			resp := f.open(t)
			time.AfterFunc(4*time.Second, func() { close(spoke) }) // two probes later
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "world\n" {
				t.Errorf("%q, %v", b, err)
			}
			_ = resp.Body.Close()
		})
	}
}
