// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/contract"
)

// echoSockets accepts WebSockets, and sends back what comes, byte for byte; it refuses
// those to /no and has nothing else but /warm.
func echoSockets(t *testing.T) (addr string, handshakes *atomic.Int32) {
	t.Helper()
	handshakes = new(atomic.Int32)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/warm" {
			return
		}
		handshakes.Add(1)
		if r.URL.Path == "/no" {
			http.Error(w, "not you", http.StatusUnauthorized)
			return
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\nX-Asked: %s\r\n\r\n",
			base64.StdEncoding.EncodeToString(sum[:]), r.Header.Get("Sec-Websocket-Protocol"), r.RequestURI)
		_, _ = io.Copy(conn, rw)
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), handshakes
}

// socketRequest is a handshake.
func socketRequest(t *testing.T, base, path string) *http.Request {
	t.Helper()
	req := request(t, "GET", base, path, nil)
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {"realtime"}}
	return req
}

// do is the head of an answer.
func do(t *testing.T, tr *transport.Transport, req *http.Request) *http.Response {
	t.Helper()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// passesBytes sends a little and a lot through a socket and ends it from this side,
// first one way, if what is between passes that on, then both.
func passesBytes(t *testing.T, resp *http.Response, halfClose bool) {
	t.Helper()
	sock, is := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !is || resp.Header.Get("Upgrade") != "websocket" ||
		resp.Header.Get("Sec-Websocket-Protocol") != "realtime" || resp.Header.Get("X-Asked") != "/ws?model=a%2fb" {
		t.Fatalf("answer %v %v", resp.Status, resp.Header)
	}
	r := bufio.NewReader(sock)
	for _, data := range [][]byte{[]byte("hello"), bigBody} {
		wrote := make(chan error, 1)
		go func() {
			_, err := sock.Write(data)
			wrote <- err
		}()
		back := make([]byte, len(data))
		if n, err := io.ReadFull(r, back); err != nil || !bytes.Equal(back, data) {
			t.Fatalf("%d of %d bytes came back, %v", n, len(data), err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	}
	if halfClose {
		if err := sock.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("at the end %d bytes more, %v", len(rest), err)
		}
	}
	if err := sock.Close(); err != nil {
		t.Error(err)
	}
}

// TestWebSocketsOverHTTP2 is RFC 8441 with servers of other people.
func TestWebSocketsOverHTTP2(t *testing.T) {
	addr, handshakes := echoSockets(t)
	for _, front := range fronts {
		offers := front.name == "haproxy" || front.name == "nghttpx"
		if !offers && front.name != "nginx" {
			continue
		}
		t.Run(front.name, func(t *testing.T) {
			program := testenv.Need(t, front.program)
			s := newSite(t, addr)
			command := front.command(t, s)
			if front.name == "nginx" { // this one passes upgrades only if told
				conf := s.dir + "/nginx.conf"
				b, err := os.ReadFile(conf)
				if err != nil {
					t.Fatal(err)
				}
				b = bytes.ReplaceAll(b, []byte(`proxy_set_header Connection "";`), []byte(`proxy_set_header Connection Upgrade; proxy_set_header Upgrade $http_upgrade;`))
				if err := os.WriteFile(conf, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(program, command...)
			cmd.Env = append(os.Environ(), "HOME="+s.dir)
			port, _ := strconv.Atoi(s.port)
			testenv.Run(t, cmd, port)
			base := "https://127.0.0.1:" + s.port
			tr := newTransport(t, transport.Config{Trust: trusting(t, s.roots), WebSocketHTTP2: true})
			t.Cleanup(tr.Close)

			t.Run("nothing is open", func(t *testing.T) {
				resp := do(t, tr, socketRequest(t, base, "/ws?model=a%2fb"))
				if resp.ProtoMajor != 1 {
					t.Errorf("HTTP/%d, though no connection was there", resp.ProtoMajor)
				}
				passesBytes(t, resp, front.name != "nghttpx")
			})
			if resp, _ := call(t, tr, request(t, "HEAD", base, "/warm", nil)); resp.ProtoMajor != 2 {
				t.Fatalf("HTTP/%d to warm up", resp.ProtoMajor)
			}
			want := 1
			if offers {
				want = 2
			}
			t.Run("a connection is there", func(t *testing.T) {
				var opened, wrote atomic.Int32
				req := socketRequest(t, base, "/ws?model=a%2fb")
				req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
					ConnectDone:  func(_, _ string, _ error) { opened.Add(1) },
					WroteRequest: func(httptrace.WroteRequestInfo) { wrote.Add(1) },
				}))
				resp := do(t, tr, req)
				if resp.ProtoMajor != want || offers && opened.Load() > 0 {
					t.Errorf("HTTP/%d, %d connections opened", resp.ProtoMajor, opened.Load())
				}
				contract.Eventually(t, "the request to be known as written", func() bool { return wrote.Load() > 0 })
				passesBytes(t, resp, front.name != "nghttpx")
			})
			t.Run("refused", func(t *testing.T) {
				before := handshakes.Load()
				resp := do(t, tr, socketRequest(t, base, "/no"))
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusUnauthorized || string(body) != "not you\n" || err != nil || resp.ProtoMajor != want {
					t.Errorf("HTTP/%d %s %q %v", resp.ProtoMajor, resp.Status, body, err)
				}
				if n := handshakes.Load() - before; n != 1 {
					t.Errorf("%d handshakes", n)
				}
			})
			contract.Eventually(t, "nothing in flight", func() bool {
				for _, c := range tr.State()[base].Conns {
					if c.InFlight > 0 {
						return false
					}
				}
				return true
			})
		})
	}
}

// TestAnOfferThatDoesNotHold: Node's server offers RFC 8441 and its handler knows
// nothing of CONNECT. The WebSocket opens over HTTP/1.1, and the next one does not ask.
func TestAnOfferThatDoesNotHold(t *testing.T) {
	node := testenv.Need(t, "node")
	s := newSite(t, "")
	script := s.write(t, "offer.mjs", `import {createSecureServer} from 'node:http2'; import {readFileSync} from 'node:fs'; import {createHash} from 'node:crypto';
const [port, cert, key] = process.argv.slice(2); let asked = 0;
const server = createSecureServer({allowHTTP1: true, settings: {enableConnectProtocol: true}, cert: readFileSync(cert), key: readFileSync(key)});
server.on('stream', (stream, headers) => { const connect = headers[':method'] === 'CONNECT'; asked += connect;
  stream.respond({':status': connect ? 405 : 200, 'x-asked': String(asked)}); stream.end(); });
server.on('upgrade', (req, socket) => { const accept = createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ' + accept + '\r\n\r\n'); socket.end(); });
server.listen(Number(port), '127.0.0.1');`)
	port, _ := strconv.Atoi(s.port)
	testenv.Run(t, exec.Command(node, script, s.port, s.cert, s.key), port)
	base := "https://" + net.JoinHostPort("127.0.0.1", s.port)
	tr := newTransport(t, transport.Config{Trust: trusting(t, s.roots), WebSocketHTTP2: true})
	t.Cleanup(tr.Close)
	asked := func() string {
		resp, _ := call(t, tr, request(t, "HEAD", base, "/", nil))
		if resp.ProtoMajor != 2 {
			t.Fatalf("HTTP/%d", resp.ProtoMajor)
		}
		return resp.Header.Get("X-Asked")
	}
	_ = asked()
	for range 2 {
		resp := do(t, tr, socketRequest(t, base, "/ws"))
		if resp.StatusCode != http.StatusSwitchingProtocols || resp.ProtoMajor != 1 {
			t.Errorf("HTTP/%d %s", resp.ProtoMajor, resp.Status)
		}
		_ = resp.Body.Close()
	}
	if n := asked(); n != "1" {
		t.Errorf("extended CONNECT was asked for %s times", n)
	}
}
