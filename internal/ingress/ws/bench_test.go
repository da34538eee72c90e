// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sockets returns both ends of a TCP connection on loopback.
func sockets(t testing.TB) (a, b *net.TCPConn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled := make(chan net.Conn, 1)
	go func() {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Error(err)
		}
		dialled <- c
	}()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), (<-dialled).(*net.TCPConn)
}

// A joiner joins two connections until both have ended.
type joiner struct {
	name string
	join func(t testing.TB, app, up net.Conn)
}

var joiners = []joiner{
	{"io.Copy", func(_ testing.TB, app, up net.Conn) {
		var wg sync.WaitGroup
		wg.Go(func() { copyBytes(up, app) })
		wg.Go(func() { copyBytes(app, up) })
		wg.Wait()
	}},
	{"relay", func(t testing.TB, app, up net.Conn) {
		r, err := New(Leg{Conn: app}, Leg{Conn: up}, Config{Stall: time.Minute})
		if err != nil {
			t.Error(err)
			return
		}
		r.Run(context.Background())
	}},
}

// copyBytes copies with a buffer of its own, as a relay of tokens does: splice gives
// them nothing.
func copyBytes(to, from net.Conn) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 8<<10))
	_ = to.Close()
}

// joined returns an app and an upstream with something between them.
func joined(t testing.TB, j joiner) (app, up net.Conn, end func()) {
	app, a := sockets(t)
	up, u := sockets(t)
	var wg sync.WaitGroup
	wg.Go(func() { j.join(t, a, u) })
	return app, up, func() {
		_, _ = app.Close(), up.Close()
		wg.Wait()
	}
}

// BenchmarkEcho sends a message and waits for its echo.
func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{120, 2000, 30_000, 1 << 20} {
		for _, j := range joiners {
			b.Run(fmt.Sprintf("%d/%s", size, j.name), func(b *testing.B) {
				app, up, end := joined(b, j)
				defer end()
				out, back := frame{0x82, strings.Repeat("x", size)}.bytes(true), frame{0x82, strings.Repeat("x", size)}.bytes(false)
				go func() {
					buf := make([]byte, 2<<20)
					for {
						if _, err := io.ReadFull(up, buf[:2]); err != nil {
							return
						}
						drainFrames(up, buf, size, true)
						if _, err := up.Write(back); err != nil {
							return
						}
					}
				}()
				buf := make([]byte, 2<<20)
				b.ReportAllocs()
				spent := cpu()
				for b.Loop() {
					if _, err := app.Write(out); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(app, buf[:2]); err != nil {
						b.Fatal(err)
					}
					drainFrames(app, buf, size, false)
				}
				b.ReportMetric(float64(cpu()-spent)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpu is what the process has used: on a busy machine it says more than the clock.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// drainFrames reads frames with size bytes of payload, of which the first two bytes
// are read.
func drainFrames(c net.Conn, buf []byte, size int, masked bool) {
	for got := 0; ; {
		n := int(buf[1] & 0x7f)
		head := 0
		switch n {
		case 126:
			head = 2
		case 127:
			head = 8
		}
		if head > 0 {
			if _, err := io.ReadFull(c, buf[:head]); err != nil {
				return
			}
			n = 0
			for _, x := range buf[:head] {
				n = n<<8 | int(x)
			}
		}
		rest := n
		if masked {
			rest += 4
		}
		if _, err := io.ReadFull(c, buf[:rest:cap(buf)]); err != nil {
			return
		}
		if got += n; got >= size {
			return
		}
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return
		}
	}
}

// BenchmarkIdle tells what an open connection without traffic holds.
func BenchmarkIdle(b *testing.B) {
	const pairs = 1000
	for _, j := range joiners {
		b.Run(j.name, func(b *testing.B) {
			for b.Loop() {
				ends := make([]func(), 0, pairs)
				before, goroutines := held(), runtime.NumGoroutine()
				for range pairs {
					app, up, end := joined(b, j)
					msg := frame{0x82, "x"}
					_, _ = app.Write(msg.bytes(true))
					_, _, _ = readFrame(up)
					_, _ = up.Write(msg.bytes(false))
					_, _, _ = readFrame(app)
					ends = append(ends, end)
				}
				b.ReportMetric(float64(held()-before)/pairs/1024, "KiB/connection")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/pairs, "goroutines/connection")
				for _, end := range ends {
					end()
				}
			}
		})
	}
}

// held is the memory in use: heap and stacks.
func held() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
