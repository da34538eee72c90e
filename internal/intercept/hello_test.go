// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// clientHello is the first record or records that crypto/tls sends.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	if cfg.ServerName == "" {
		cfg.InsecureSkipVerify = true
	}
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(client, cfg).Handshake()
	}()
	head := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	<-done
	return append(head, body...)
}

// split gives the message of one record again in records of at most n bytes.
func split(record []byte, n int) []byte {
	var out []byte
	for part := range slices.Chunk(record[recordHeader:], n) {
		out = append(out, typeHandshake, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

// TestLookReadsHowItCame gives Look a ClientHello in every size of piece.
func TestLookReadsHowItCame(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "api.test", NextProtos: []string{"h2", "http/1.1"}})
	for name, b := range map[string][]byte{
		"one record": hello, "records of a byte": split(hello, 1), "records of 3": split(hello, 3), "records of 100": split(hello, 100),
		"with what follows": append(slices.Clone(hello), "more"...),
	} {
		t.Run(name, func(t *testing.T) {
			whole := 0
			for n := range len(b) + 1 {
				h, v := Look(b[:n])
				switch {
				case v == Other:
					t.Fatalf("%d bytes of %d are taken for something else", n, len(b))
				case v == More && whole > 0:
					t.Fatalf("%d bytes are enough and %d are not", whole, n)
				case v == Client && (h.ServerName != "api.test" || !slices.Equal(h.Protocols, []string{"h2", "http/1.1"})):
					t.Fatalf("%d bytes: %+v", n, h)
				case v == Client && whole == 0:
					whole = n
				}
			}
			if whole == 0 {
				t.Error("the ClientHello was not found")
			}
		})
	}
}

func TestLookLeavesOthersAlone(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "api.test"})
	change := func(at int, to byte) []byte { b := slices.Clone(hello); b[at] = to; return b }
	for name, b := range map[string][]byte{
		"an unknown method":       []byte("BREW / HTTP/1.1\r\n"),
		"a method in lower case":  []byte("get / HTTP/1.1\r\n"),
		"a method and no target":  []byte("GET x"),
		"HTTP/2 of another kind":  []byte("PRI * HTTP/2.1"),
		"SSH":                     []byte("SSH-2.0-x\r\n"),
		"an alert":                {0x15, 3, 1, 0, 2, 2, 40},
		"SSL 2":                   {0x80, 0x2e, 1, 3, 1},
		"an empty record":         {0x16, 3, 1, 0, 0},
		"a record too long":       {0x16, 3, 1, 0x40, 1},
		"another version":         {0x16, 2},
		"a ServerHello":           change(recordHeader, 2),
		"a message too long":      {0x16, 3, 1, 0, 4, 1, 1, 0, 0},
		"a session id too long":   change(recordHeader+messageHeader+34, 255),
		"a message cut short":     change(recordHeader+3, hello[recordHeader+3]-1),
		"an extension cut short":  change(recordHeader+3, hello[recordHeader+3]-20),
		"only the type, of a cut": {0x16, 3, 1, 0, 1, 0x0b},
	} {
		if h, v := Look(b); v != Other {
			t.Errorf("%s: %v, %+v", name, v, h)
		}
	}
	if _, v := Look(nil); v != More {
		t.Errorf("nothing yet: %v", v)
	}
}

// TestLookKnowsRequests gives Look the beginnings of requests, byte by byte.
func TestLookKnowsRequests(t *testing.T) {
	for line, need := range map[string]int{
		"GET /v1/x HTTP/1.1\r\n": len("GET /"), "POST http://a.test/ HTTP/1.1\r\n": len("POST http"), "OPTIONS * HTTP/1.1\r\n": len("OPTIONS *"),
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": len("PRI * HTTP/2.0\r\n"),
	} {
		for n := range len(line) + 1 {
			want := More
			if n >= need {
				want = HTTP
			}
			if _, v := Look([]byte(line[:n])); v != want {
				t.Errorf("%q: %v, want %v", line[:n], v, want)
			}
		}
	}
}

func TestFits(t *testing.T) {
	tests := []struct {
		name  string
		hello Hello
		host  string
		want  string
	}{
		{"the host", Hello{ServerName: "API.test", Protocols: []string{"h2", "http/1.1"}}, "api.test", ""},
		{"no name, no protocols", Hello{}, "127.0.0.1", ""},
		{"HTTP among others", Hello{ServerName: "api.test", Protocols: []string{"grease", "http/1.1"}}, "api.test", ""},
		{"another host", Hello{ServerName: "other.test", Protocols: nil}, "api.test", OtherName},
		{"the public name of ECH", Hello{ServerName: "ech.test", Protocols: []string{"h2"}}, "api.test", OtherName},
		{"a name below", Hello{ServerName: "x.api.test", Protocols: nil}, "api.test", OtherName},
		{"no HTTP", Hello{ServerName: "api.test", Protocols: []string{"acme-tls/1"}}, "api.test", OtherProtocol},
		{"HTTP/1.0", Hello{ServerName: "api.test", Protocols: []string{"http/1.0"}}, "api.test", OtherProtocol},
	}
	for _, tt := range tests {
		if got := tt.hello.Fits(tt.host); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestAKindOfClientIsKnownAgain compares ClientHellos of different configurations, and of
// one in several connections.
func TestAKindOfClientIsKnownAgain(t *testing.T) {
	configs := map[string]*tls.Config{
		"plain": {ServerName: "api.test"}, "HTTP/2": {ServerName: "api.test", NextProtos: []string{"h2"}}, "1.2": {ServerName: "api.test", MaxVersion: tls.VersionTLS12},
		"one suite": {ServerName: "api.test", MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}},
	}
	seen := map[uint64]string{}
	for name, cfg := range configs {
		first, _ := Look(clientHello(t, cfg))
		again, _ := Look(clientHello(t, cfg))
		cfg = cfg.Clone()
		cfg.ServerName = "other.test"
		other, _ := Look(clientHello(t, cfg))
		if first.Client == 0 || again.Client != first.Client || other.Client != first.Client {
			t.Errorf("%s: %x, %x, for another host %x", name, first.Client, again.Client, other.Client)
		}
		if was, ok := seen[first.Client]; ok {
			t.Errorf("%s is taken for %s", name, was)
		}
		seen[first.Client] = name
	}
	a := kindOf([]byte{0x0a, 0x0a, 0x13, 0x01}, []uint16{0x1a1a, 0, 16, 41})
	if b := kindOf([]byte{0x13, 0x01, 0x3a, 0x3a}, []uint16{16, 21, 0, 0xfafa}); a != b {
		t.Errorf("%x and %x, which differ in order, GREASE and fleeting extensions only", a, b)
	}
}

func FuzzClientHello(f *testing.F) {
	hello := clientHello(f, &tls.Config{ServerName: "api.test", NextProtos: []string{"h2"}})
	f.Add(hello)
	f.Add(split(hello, 7))
	f.Add(clientHello(f, &tls.Config{MaxVersion: tls.VersionTLS12}))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		shown := bytes.Clone(b)
		h, v := Look(b)
		if !bytes.Equal(shown, b) {
			t.Fatal("Look has changed what it was shown")
		}
		if v != Client {
			return
		}
		if again, v := Look(append(shown, 0)); v != Client || again.ServerName != h.ServerName {
			t.Errorf("one byte more makes %v, %+v of %+v", v, again, h)
		}
		// What crypto/tls accepts it must read alike.
		if name, protocols, ok := asTLS(b); ok && (name != "" && !strings.EqualFold(name, h.ServerName) || !slices.Equal(protocols, h.Protocols)) {
			t.Errorf("crypto/tls reads %q %q, we %+v", name, protocols, h)
		}
	})
}

// asTLS is how the standard library's server reads a ClientHello.
func asTLS(b []byte) (name string, protocols []string, ok bool) {
	cfg := &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		name, protocols, ok = info.ServerName, info.SupportedProtos, true
		return nil, io.EOF
	}}
	_ = tls.Server(deadEnd{bytes.NewReader(b)}, cfg).Handshake()
	return name, protocols, ok
}

// A deadEnd is a connection that has nothing but what was sent first.
type deadEnd struct{ io.Reader }

func (deadEnd) Write(p []byte) (int, error)      { return len(p), nil }
func (deadEnd) Close() error                     { return nil }
func (deadEnd) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (deadEnd) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (deadEnd) SetDeadline(time.Time) error      { return nil }
func (deadEnd) SetReadDeadline(time.Time) error  { return nil }
func (deadEnd) SetWriteDeadline(time.Time) error { return nil }

func BenchmarkLook(b *testing.B) {
	hello := clientHello(b, &tls.Config{ServerName: "api.test", NextProtos: []string{"h2", "http/1.1"}})
	b.ReportAllocs()
	for b.Loop() {
		if _, v := Look(hello); v != Client {
			b.Fatal(v)
		}
	}
}
