// SPDX-License-Identifier: Apache-2.0

package transport_test

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
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/dial"
)

// TestAnswerBeforeAResetIsNotLost: the upstream answers from the head alone and
// closes on a running upload, which resets the connection.
func TestAnswerBeforeAResetIsNotLost(t *testing.T) {
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		_, _ = io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
	})
	tr := newTransport(t, transport.Config{})
	upload, lost := make([]byte, 16<<20), 0
	for range 100 {
		resp, err := tr.RoundTrip(request(t, http.MethodPost, "http://"+addr, "/", bytes.NewReader(upload)))
		if err != nil {
			lost++
			continue
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "no" {
			t.Errorf("body %q: %v", b, err)
		}
		_ = resp.Body.Close()
	}
	if lost > 0 {
		t.Errorf("%d of 100 answers were lost", lost)
	}
}

// h2upstream gives each request's headers to serve, which says whether to go on.
func h2upstream(t *testing.T, serve func(fr *http2.Framer, f *http2.MetaHeadersFrame) bool) (string, []byte) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	cert, roots := srv.TLS.Certificates[0], pemOf(srv)
	srv.Close()
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
	addr := upstream(t, func(_ int, raw *net.TCPConn, _ *bufio.Reader) {
		c := tls.Server(raw, cfg)
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		fr := http2.NewFramer(c, c)
		fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_ = fr.WriteSettings()
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					_ = fr.WriteSettingsAck()
				}
			case *http2.MetaHeadersFrame:
				if !serve(fr, f) {
					return
				}
			}
		}
	})
	return "https://" + addr, roots
}

func TestUnprocessedHTTP2RequestMoves(t *testing.T) {
	refuse := map[string]func(*http2.Framer, uint32) error{
		"REFUSED_STREAM": func(fr *http2.Framer, id uint32) error { return fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"GOAWAY":         func(fr *http2.Framer, _ uint32) error { return fr.WriteGoAway(0, http2.ErrCodeNo, nil) },
	}
	for how, refuse := range refuse {
		for _, tt := range []struct{ method, body string }{{"GET", ""}, {"HEAD", ""}, {"DELETE", ""}, {"POST", ""}, {"POST", "hello"}, {"GET", "hello"}} {
			t.Run(how+" "+tt.method+tt.body, func(t *testing.T) {
				var refused atomic.Bool
				base, roots := h2upstream(t, func(fr *http2.Framer, f *http2.MetaHeadersFrame) bool {
					if refused.CompareAndSwap(false, true) {
						return refuse(fr, f.StreamID) == nil
					}
					var head bytes.Buffer
					_ = hpack.NewEncoder(&head).WriteField(hpack.HeaderField{Name: ":status", Value: "204"})
					_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: head.Bytes(), EndHeaders: true, EndStream: true})
					return fr.WriteGoAway(f.StreamID, http2.ErrCodeNo, nil) == nil // the client closes once it has the answer
				})
				var body io.Reader
				if tt.body != "" {
					body = bytes.NewReader([]byte(tt.body))
				}
				resp, err := newTransport(t, transport.Config{Trust: trusting(t, roots)}).RoundTrip(request(t, tt.method, base, "/", body))
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			})
		}
	}
}

// TestUnansweredHTTP2RequestIsNotSentTwice: the connection ends after the headers.
func TestUnansweredHTTP2RequestIsNotSentTwice(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		var arrived atomic.Int32
		base, roots := h2upstream(t, func(*http2.Framer, *http2.MetaHeadersFrame) bool {
			arrived.Add(1)
			return false
		})
		_, err := newTransport(t, transport.Config{Trust: trusting(t, roots)}).RoundTrip(request(t, method, base, "/", nil))
		if c, sent := code(t, err); c != "upstream_closed" || !sent || arrived.Load() != 1 {
			t.Errorf("%s: code %s, sent %v, arrived %d times", method, c, sent, arrived.Load())
		}
	}
}

func upgraded(t *testing.T, ctx context.Context, serve func(c *net.TCPConn, in *bufio.Reader)) *http.Response {
	t.Helper()
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly")
		serve(c, in)
	})
	r := request(t, http.MethodGet, "http://"+addr, "/", nil).WithContext(ctx)
	r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	resp, err := newTransport(t, transport.Config{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	early := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, early); err != nil || string(early) != "early" {
		t.Fatalf("behind the 101 came %q, %v", early, err)
	}
	return resp
}

func TestUpgradedConnectionEndsWithTheRequestsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	upgraded(t, ctx, func(_ *net.TCPConn, in *bufio.Reader) {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	})
	cancel()
	if err := <-ended; errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Errorf("the upstream's connection stayed open: %v", err)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestUpgradedConnectionClosesOneSideAlone(t *testing.T) {
	resp := upgraded(t, t.Context(), func(c *net.TCPConn, in *bufio.Reader) {
		b, _ := io.ReadAll(in)
		_, _ = c.Write(append(b, '!'))
	})
	rw := resp.Body.(io.ReadWriteCloser)
	half, ok := rw.(interface{ CloseWrite() error })
	if !ok {
		t.Fatal("the connection behind a 101 has no CloseWrite")
	}
	_, _ = io.WriteString(rw, "bye")
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(rw); string(b) != "bye!" || err != nil {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestSilentParentIsATimeout(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	parent := upstream(t, func(_ int, _ *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		<-ctx.Done()
	})
	t.Cleanup(stop)
	via := transport.ThroughParent(dial.New(dial.Config{}).DialContext,
		func(string) (*url.URL, error) { return url.Parse("http://user:secret@" + parent) }, 50*time.Millisecond, nil)
	_, err := via(t.Context(), "tcp", "model.test:443")
	if c, sent := code(t, err); c != "parent_proxy_failed" || sent {
		t.Errorf("code %s, sent %v", c, sent)
	}
	if !isTimeout(errTimeout{err}) || !strings.Contains(err.Error(), "timeouts.connect") || strings.Contains(err.Error(), "secret") {
		t.Errorf("told as %v", err)
	}
}

// errTimeout lets Timeout of a typed error be asked.
type errTimeout struct{ error }

func (e errTimeout) Timeout() bool {
	var te interface{ Timeout() bool }
	return errors.As(e.error, &te) && te.Timeout()
}
func (errTimeout) Temporary() bool { return false }

// TestMissingClientCertificateIsTLSTrouble asks servers that want one: with TLS 1.2 they
// say so in the handshake, with 1.3 after it.
func TestMissingClientCertificateIsTLSTrouble(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s HTTP/2 %v", tls.VersionName(version), http2), func(t *testing.T) {
				srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: version}
				srv.EnableHTTP2 = http2
				srv.StartTLS()
				t.Cleanup(srv.Close)
				_, err := newTransport(t, transport.Config{Trust: trusting(t, pemOf(srv))}).RoundTrip(request(t, http.MethodGet, srv.URL, "/", nil))
				if c, _ := code(t, err); c != "upstream_tls_client_certificate" || !strings.Contains(err.Error(), "tls.client_cert") {
					t.Errorf("code %s: %v", c, err)
				}
			})
		}
	}
}

// TestClientCertificateThatIsOnlyAskedFor is no trouble.
func TestClientCertificateThatIsOnlyAskedFor(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	resp, err := newTransport(t, transport.Config{Trust: trusting(t, pemOf(srv))}).RoundTrip(request(t, http.MethodGet, srv.URL, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

func TestNobodyIsNamedWhereTheRequestNamesNobody(t *testing.T) {
	head := make(chan string, 1)
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		h, _ := readHead(in)
		head <- h
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	r := request(t, http.MethodGet, "http://"+addr, "/", nil)
	r.Header = nil
	resp, err := newTransport(t, transport.Config{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if got, want := <-head, "GET / HTTP/1.1\r\nHost: "+addr+"\r\n\r\n"; got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
}

func TestExpectedBodyWaitsForContinue(t *testing.T) {
	early := make(chan bool, 1)
	var once sync.Once
	bodyRead := make(chan struct{})
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		select {
		case <-bodyRead:
			early <- true
		case <-time.After(100 * time.Millisecond): // well inside the second that is waited
			early <- false
		}
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		_, _ = io.ReadFull(in, make([]byte, 2))
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	r := request(t, http.MethodPost, "http://"+addr, "/", readerFunc(func(p []byte) (int, error) {
		once.Do(func() { close(bodyRead) })
		return copy(p, "ab"), io.EOF
	}))
	r.ContentLength = 2
	r.Header["Expect"] = []string{"100-continue"}
	resp, err := newTransport(t, transport.Config{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if <-early {
		t.Error("the body was taken before 100 Continue")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
