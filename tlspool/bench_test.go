// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Variables of the child of BenchmarkHandshake.
const (
	countVariable = "TLSPOOL_TEST_COUNT"
	curveVariable = "TLSPOOL_TEST_CURVE" // a tls.CurveID, "" for Go's own choice
)

// kinds are the chains of three that are compared.
var kinds = []struct {
	name   string
	newKey func() crypto.Signer
}{{"P-256", newECDSA}, {"RSA-2048", newRSA}}

// cpu is what this process has used, user and system.
func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// childBench is the client's process: connections, each with one request, by
// turns in blocks of full and of resumed handshakes. It prints the CPU of each
// kind in nanoseconds a connection.
func childBench() int {
	used, err := compareCPU()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(used[0], used[1])
	return 0
}

func compareCPU() (used [2]int64, err error) {
	const block = 20
	n, err := strconv.Atoi(os.Getenv(countVariable))
	if err != nil {
		return used, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(os.Getenv(rootVariable)))
	cfg := &tls.Config{ServerName: host, RootCAs: roots}
	if id, err := strconv.Atoi(os.Getenv(curveVariable)); err == nil {
		cfg.CurvePreferences = []tls.CurveID{tls.CurveID(id)}
	}
	stores := [2]*Store{nil, New(Config{})}
	for b := -2; b < 2*((n+block-1)/block); b++ { // two blocks to warm up
		kind := (b + 2) % 2
		before := cpu()
		for i := range block {
			s := stores[kind]
			if s == nil {
				s = New(Config{}) // a full handshake also reads and stores its ticket
			}
			st, err := dial(context.Background(), s.Handshake(hostKey), os.Getenv(addrVariable), cfg)
			if err != nil {
				return used, err
			}
			if st.DidResume != (kind == 1) && (b >= 0 || i > 0) {
				return used, errors.New("the handshake is of the wrong kind")
			}
		}
		if b >= 0 {
			used[kind] += int64(cpu() - before)
		}
	}
	done := int64(block * ((n + block - 1) / block))
	return [2]int64{used[0] / done, used[1] / done}, nil
}

// BenchmarkHandshake compares the CPU that a client process uses for a
// connection over loopback, with one request and its ticket, full and resumed
// (TLS 1.3, chains of three).
func BenchmarkHandshake(b *testing.B) {
	for _, kind := range kinds {
		for _, curve := range []tls.CurveID{0, tls.X25519} {
			name := kind.name + "/default"
			env := ""
			if curve != 0 {
				name, env = kind.name+"/"+curve.String(), strconv.Itoa(int(curve))
			}
			b.Run(name, func(b *testing.B) {
				p := newPKI(kind.newKey)
				addr := serve(b, &tls.Config{Certificates: []tls.Certificate{p.cert(host)}})
				root := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.root.Raw}))
				out := runChild(b, "bench", countVariable+"="+strconv.Itoa(b.N), curveVariable+"="+env, rootVariable+"="+root, addrVariable+"="+addr)
				var full, resumed float64
				if _, err := fmt.Sscan(out, &full, &resumed); err != nil {
					b.Fatal(err, out)
				}
				b.ReportMetric(0, "ns/op") // both sides' time
				b.ReportMetric(full/1e3, "full-µs")
				b.ReportMetric(resumed/1e3, "resumed-µs")
				b.ReportMetric(resumed/full, "resumed/full")
			})
		}
	}
}

// BenchmarkMemory measures what a stored ticket takes: encoded, on the heap as
// it came from the server, and on the heap as it came from a file.
func BenchmarkMemory(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind.name, func(b *testing.B) {
			p := newPKI(kind.newKey)
			addr := serve(b, &tls.Config{Certificates: []tls.Certificate{p.cert(host)}})
			for b.Loop() {
				const n = 300
				f := File{Path: b.TempDir() + "/sessions"}
				s := New(Config{MaxTickets: n, MaxBytes: 1 << 30})
				before := heap()
				for range n {
					h := s.Handshake(hostKey)
					h.key.Trust = "t2" // Get finds nothing
					if _, err := dial(b.Context(), h, addr, p.client()); err != nil {
						b.Fatal(err)
					}
					s.mu.Lock()
					e := s.entries[h.key]
					for _, t := range e.tickets {
						s.addLocked(s.entryLocked(hostKey), t)
					}
					e.tickets = nil
					s.mu.Unlock()
				}
				fresh := heap() - before
				encoded := s.entries[hostKey].state(time.Now()).Bytes
				must(b, s.Save(f))
				runtime.KeepAlive(s)
				s = New(Config{MaxTickets: n, MaxBytes: 1 << 30})
				before = heap()
				must(b, s.Load(f))
				loaded := heap() - before
				if got := s.State()[0].Tickets; got != n {
					b.Fatalf("%d tickets, want %d", got, n)
				}
				b.ReportMetric(float64(encoded)/n, "encoded-B/ticket")
				b.ReportMetric(float64(fresh)/n, "heap-B/ticket")
				b.ReportMetric(float64(loaded)/n, "loaded-B/ticket")
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkStore is the store's own share of a handshake: taking a ticket and
// storing the next.
func BenchmarkStore(b *testing.B) {
	s := New(Config{})
	cs := madeSession(b, tls.VersionTLS13, "1", time.Now(), time.Now().Add(time.Hour))
	b.ReportAllocs()
	for b.Loop() {
		h := s.Handshake(hostKey)
		h.Get("")
		h.Done(true)
		h.Put("", cs)
	}
}
