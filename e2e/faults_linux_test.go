// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/mockapi"
	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
)

// The names that the page has for the four faults.
var faultNames = []string{"Slow provider", "Lossy or late network", "Slow reader", "Buffering hop"}

// A planted is a fault in one stream.
type planted struct {
	name     string // as the page has it
	upstream string
	control  string // the upstream of a healthy stream beside it
	loss     float64
	ask      string // of mockapi: more than anybody waits for
	read     reader // nil = at once
	says     string // a part of the sentence that the page has for it
}

// A reader is how an app reads until everybody has seen it.
type reader func(r io.Reader, seen <-chan struct{})

func plantedFaults() []planted {
	return []planted{
		{name: "Slow provider", upstream: "slow", control: "control", ask: "tokens=100&gap=4s", says: "The provider"},
		{name: "Lossy or late network", upstream: "lossy", control: "near", loss: 0.15, ask: "tokens=10000&gap=50ms", says: "The network"},
		{name: "Slow reader", upstream: "unread", control: "control", ask: "tokens=5000&gap=1ms&size=4000", read: slowly, says: "Your app"},
		{name: "Buffering hop", upstream: "hop", control: "control", ask: "tokens=10000&gap=50ms", says: "Something between Warmwire and the model collects events"},
	}
}

// slowly reads 20 KiB each half second, until everybody has seen it and all buffers on the
// way have been full for a while, and then the rest.
func slowly(r io.Reader, seen <-chan struct{}) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	looking := seen
	for i := 0; i < 32 || looking != nil; i++ {
		select {
		case <-seen:
			looking = nil
		default:
		}
		if _, err := io.CopyN(io.Discard, r, 20<<10); err != nil {
			return
		}
		<-tick.C
	}
}

// TestDashboardNamesTheFault plants four faults, one at a time, in a real network with a
// real nginx in it: the page names each while its stream runs and after its end, and no
// other, and a stream beside it is healthy.
func TestDashboardNamesTheFault(t *testing.T) {
	if raceEnabled {
		t.Skip("it waits for faults to show, most of a minute: all tests run it without the race detector, and races show in TestDashboard as well")
	}
	s := newFarStage(t)
	b := openTab(t, "http://"+s.admin+"/", 1280, 900)
	b.await(text("#live"), "live")
	for _, f := range plantedFaults() {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			b.t = t
			s.setLoss(t, f.loss)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var reading sync.WaitGroup
			defer reading.Wait()
			defer leave()
			s.read(ctx, t, &reading, f.control, "tokens=1000000&gap=100ms", nil, nil)
			faulted, end := context.WithCancel(ctx)
			defer end()
			seen := make(chan struct{})
			faulty := s.read(faulted, t, &reading, f.upstream, f.ask, f.read, seen)
			b.awaitFault("stream-table", f.upstream, f.name)
			b.await(cell("stream-table", f.upstream), f.says)
			b.await(cell("stream-table", f.control), "Healthy")
			b.await(text("#finding-list"), f.name)
			b.shots("http://"+s.admin+"/", strings.ReplaceAll(f.name, " ", "-"))
			b.await(cell("stream-table", f.control), "Healthy")
			close(seen)
			if f.read == nil { // it has shown what it suffers from; no need to wait for its end
				end()
			}
			<-faulty
			b.eval(choose("slowest?by=duration"))
			b.awaitFault("request-table", f.upstream, f.name)
			leave() // the control's reader
			b.eval(choose("interrupted"))
			b.await(cell("request-table", f.control), "healthy")
			s.setLoss(t, 0)
		})
	}
}

// choose picks a list of finished requests.
func choose(list string) string {
	return fmt.Sprintf("(() => { const e = document.getElementById('request-list'); e.value = %q; e.dispatchEvent(new Event('change')) })()", list)
}

// cell is how it goes with the newest stream or request of an upstream, as a person reads it.
func cell(table, upstream string) string {
	column := map[string]int{"stream-table": 2, "request-table": 3}[table]
	return fmt.Sprintf("[...document.querySelectorAll('#%s tbody tr')].filter((r) => r.cells[1]?.innerText === %q).sort((a, b) => b.cells[0].innerText - a.cells[0].innerText)[0]?.cells[%d].innerText ?? ''",
		table, upstream, column)
}

// awaitFault waits until name is what the page has, and fails if it has another meanwhile.
func (b *tab) awaitFault(table, upstream, name string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := b.eval(cell(table, upstream))
		for _, other := range faultNames {
			if other != name && strings.Contains(got, other) {
				b.t.Fatalf("%s has %q of %s, want %s", table, got, upstream, name)
			}
		}
		if strings.Contains(got, name) {
			b.t.Logf("%s: %s", table, strings.ReplaceAll(got, "\n", " | "))
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s has %q of %s, want %s", table, got, upstream, name)
		}
		b.eval("new Promise((f) => setTimeout(f, 50))")
	}
}

// shots saves pictures for people of the page as it is now: light, dark and narrow.
func (b *tab) shots(address, name string) {
	if os.Getenv("E2E_SHOTS") == "" {
		return
	}
	b.shot(name)
	for kind, width := range map[string]int{"dark": 1280, "narrow": 400} {
		other := openTab(b.t, address, width, 900, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
		other.await(text("#live"), "live")
		other.shot(name + "-" + kind)
		_ = other.conn.Close()
	}
}

// A farStage is Warmwire on one host of a lab, and a model API on the other, on a port for each
// fault: one of them is of an nginx that buffers. A last one is beside Warmwire.
type farStage struct {
	lab   *netlab.Lab
	admin string // reached from here
	app   *http.Client
}

func newFarStage(t *testing.T) *farStage {
	t.Helper()
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	lab, err := netlab.New(t.Context(), netlab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &farStage{lab: lab}
	s.setLoss(t, 0)
	dir := t.TempDir()
	ca := s.startModels(t, dir)
	s.startWarmwire(t, dir, ca)
	way := &http.Transport{DialContext: lab.Client.Dial}
	t.Cleanup(way.CloseIdleConnections)
	s.app = &http.Client{Transport: way}
	s.admin = s.door(t, adminOfFar)
	return s
}

// setLoss makes the path one of 80 ms there and back that loses so much.
func (s *farStage) setLoss(t *testing.T, loss float64) {
	t.Helper()
	link := netlab.Link{Delay: 40 * time.Millisecond, Loss: loss}
	if err := s.lab.Set(link, link); err != nil {
		t.Fatal(err)
	}
}

// Ports of the stage's hosts, which have nothing else on them.
const (
	slowPort, lossyPort, unreadPort, controlPort, hopPort, plainPort, nearPort = 4431, 4432, 4433, 4434, 4435, 8000, 8001

	originOfFar, adminOfFar = "127.0.0.1:8484", "127.0.0.1:8485"
)

// startModels starts the model API and nginx, and returns the file of their authority.
func (s *farStage) startModels(t *testing.T, dir string) (caFile string) {
	t.Helper()
	mock, err := mockapi.New(mockapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	caPEM, cert := newCertificate(t)
	caFile = filepath.Join(dir, "ca.pem")
	writePair(t, dir, cert)
	if err := os.WriteFile(caFile, caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mock.Handler(), TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, ErrorLog: log.New(io.Discard, "", 0)}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	serve := func(h *netlab.Host, host string, port int, secure bool) {
		l, err := h.Listen("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if err != nil {
			t.Fatal(err)
		}
		serving.Go(func() {
			if secure {
				_ = server.ServeTLS(l, "", "")
			} else {
				_ = server.Serve(l)
			}
		})
	}
	far := s.lab.Server.Addr4().String()
	for _, port := range []int{slowPort, lossyPort, unreadPort, controlPort} {
		serve(s.lab.Server, far, port, true)
	}
	serve(s.lab.Server, "127.0.0.1", plainPort, false)
	serve(s.lab.Client, "127.0.0.1", nearPort, false)
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(fmt.Sprintf(bufferingNginx, dir, far, hopPort, plainPort)), 0o600); err != nil {
		t.Fatal(err)
	}
	launch(t, s.lab.Server.Command(testenv.Need(t, "nginx"), "-c", config, "-e", filepath.Join(dir, "nginx.log")), nil)
	return caFile
}

// bufferingNginx is a reverse proxy as its defaults make it, which is not for event streams.
const bufferingNginx = `daemon off;
user root;
pid %[1]s/nginx.pid;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
    listen %[2]s:%[3]d ssl http2;
    ssl_certificate %[1]s/cert.pem;
    ssl_certificate_key %[1]s/key.pem;
    location / {
      proxy_pass http://127.0.0.1:%[4]d;
    }
  }
}
`

func (s *farStage) startWarmwire(t *testing.T, dir, caFile string) {
	t.Helper()
	program := built(t).warmwire
	hosts := filepath.Join(dir, "hosts")
	config := fmt.Sprintf("listen: {address: %s}\nadmin: {address: %s}\ndns: {hosts_file: %s, mode: resolvers_only, resolvers: [\"udp://127.0.0.1:9\"]}\nupstreams:\n", originOfFar, adminOfFar, hosts)
	for name, port := range map[string]int{"slow": slowPort, "lossy": lossyPort, "unread": unreadPort, "control": controlPort, "hop": hopPort} {
		config += fmt.Sprintf("  %s: {url: \"https://openai.test:%d\", dialect: openai, tls: {ca_file: %q}}\n", name, port, caFile)
	}
	config += fmt.Sprintf("  near: {url: \"http://127.0.0.1:%d\", dialect: openai}\n", nearPort)
	file, state := filepath.Join(dir, "warmwire.yaml"), t.TempDir()
	for path, text := range map[string]string{file: config, hosts: s.lab.Server.Addr4().String() + " openai.test\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said lockedBuffer
	cmd := s.lab.Client.Command(program, "run", "-c", file)
	cmd.Env = environ(state)
	launch(t, cmd, &said)
	health := func() error {
		check := s.lab.Client.Command(program, "health", "-c", file)
		check.Env = environ(state)
		return check.Run()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for health() != nil {
		select {
		case <-ctx.Done():
			t.Fatalf("warmwire is not ready\n%s", said.String())
		case <-tick.C:
		}
	}
}

// writePair writes a certificate as nginx reads it.
func writePair(t *testing.T, dir string, cert tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// launch starts a program that runs until the test ends.
func launch(t *testing.T, cmd *exec.Cmd, said *lockedBuffer) {
	t.Helper()
	if said == nil {
		said = new(lockedBuffer)
	}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		ended := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // it was told to end
		ended.Stop()
		if strings.Contains(said.String(), "DATA RACE") || t.Failed() {
			t.Errorf("%s said:\n%s", filepath.Base(cmd.Path), said.String())
		}
	})
}

// door is an address here that leads to one of the client's host.
func (s *farStage) door(t *testing.T, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var passing sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		passing.Wait()
	})
	pass := func(in net.Conn) {
		out, err := s.lab.Client.Dial(context.Background(), "tcp", to)
		if err != nil {
			_ = in.Close()
			return
		}
		mu.Lock()
		open = append(slices.Clip(open), in, out)
		mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			passing.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_, _ = way[0].Close(), way[1].Close()
			})
		}
	}
	passing.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			pass(in)
		}
	})
	return l.Addr().String()
}

// read begins a streamed answer and has it read; the channel is closed at its end.
func (s *farStage) read(ctx context.Context, t *testing.T, reading *sync.WaitGroup, upstream, ask string, how reader, seen <-chan struct{}) <-chan struct{} {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+originOfFar+"/"+upstream+"/v1/chat/completions",
		strings.NewReader(fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hello"}]}`, "mock?"+ask)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	done := make(chan struct{})
	reading.Go(func() {
		defer close(done)
		resp, err := s.app.Do(req)
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("%s: %v", upstream, err)
			}
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", upstream, resp.StatusCode)
		}
		if how != nil {
			how(resp.Body, seen)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	})
	return done
}
