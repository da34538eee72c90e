// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
)

// A client speaks HTTP/1.1 to one peer, or to the upstream itself.
type client struct {
	base string
	http *http.Client
}

// newClient makes a client of base, through a forward proxy if via is not nil.
func newClient(base string, via *url.URL, ca []byte) *client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	t := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pool, ClientSessionCache: tls.NewLRUClientSessionCache(16)},
		MaxIdleConnsPerHost: 4000,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		DisableCompression:  true,
	}
	if via != nil {
		t.Proxy = http.ProxyURL(via)
	}
	return &client{base: base, http: &http.Client{Transport: t}}
}

// narrowed makes the client's receive buffers small; see kernelBuffer.
func (c *client) narrowed() *client {
	t := c.http.Transport.(*http.Transport)
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(kernelBuffer)
		}
		return conn, err
	}
	return c
}

func (c *client) close() { c.http.CloseIdleConnections() }

// histogram holds microseconds up to a minute, three digits.
func histogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 3) }

// requestBody is 1 KiB; nothing writes to it.
var requestBody = bytes.Repeat([]byte("x"), 1<<10)

func (c *client) post(ctx context.Context, path string) (*http.Response, error) {
	return c.do(ctx, http.MethodPost, path, bytes.NewReader(requestBody))
}

// get is for streams that are only there to be open: the stock proxy over
// HTTP/1.1 has cut about one in a hundred answers to POST here ("use of closed
// network connection" on its upstream side), and a cut stream weighs nothing.
func (c *client) get(ctx context.Context, path string) (*http.Response, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

func (c *client) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return resp, nil
}

// calls makes n calls one after another and records the time to the first byte
// of the body.
func (c *client) calls(ctx context.Context, n int, into *hdrhistogram.Histogram) error {
	var one [1]byte
	for range n {
		start := time.Now()
		resp, err := c.post(ctx, "/v1/call")
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(resp.Body, one[:]); err != nil {
			return err
		}
		_ = into.RecordValue(max(1, time.Since(start).Microseconds()))
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		_ = resp.Body.Close()
	}
	return nil
}

// loop makes calls over conns connections, each the next once the last has
// ended, for the given time, and returns how many ended.
func (c *client) loop(ctx context.Context, conns int, length time.Duration) (int64, error) {
	var (
		count atomic.Int64
		group errgroup.Group
		end   = time.Now().Add(length)
	)
	for range conns {
		group.Go(func() error {
			for time.Now().Before(end) {
				resp, err := c.post(ctx, "/v1/call")
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if err != nil {
					return err
				}
				count.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return count.Load(), err
}

// tokens reads streams at once and records each token's way from the upstream's
// write to our read. A stream that breaks off is counted; none may fail to begin.
func (c *client) tokens(ctx context.Context, s settings, into *hdrhistogram.Histogram) (count int64, cut int, err error) {
	path := fmt.Sprintf("/v1/stream?rate=%d&for=%s", s.rate, s.tokens)
	var mu sync.Mutex // guards the results
	var wg sync.WaitGroup
	for range s.streams {
		wg.Go(func() {
			h, rerr := c.readTokens(ctx, path)
			mu.Lock()
			defer mu.Unlock()
			into.Merge(h)
			count += h.TotalCount()
			switch {
			case errors.Is(rerr, io.ErrUnexpectedEOF), rerr != nil && h.TotalCount() > 0:
				cut++
			case rerr != nil:
				err = errors.Join(err, rerr)
			}
		})
	}
	wg.Wait()
	return count, cut, err
}

func (c *client) readTokens(ctx context.Context, path string) (*hdrhistogram.Histogram, error) {
	h := histogram()
	resp, err := c.post(ctx, path)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	in := bufio.NewReaderSize(resp.Body, 4<<10)
	prefix := []byte(`data: {"t":`)
	for {
		line, err := in.ReadSlice('\n')
		if err == io.EOF {
			return h, nil
		}
		if err != nil {
			return h, err
		}
		now := monotonic()
		rest, ok := bytes.CutPrefix(line, prefix)
		if !ok {
			continue
		}
		stamp, _, _ := bytes.Cut(rest, []byte{','})
		sent, err := strconv.ParseInt(string(stamp), 10, 64)
		if err != nil {
			return h, err
		}
		_ = h.RecordValue(max(1, (now-sent)/1000))
	}
}

// hold opens n streams that stay silent and returns the function that ends them.
func (c *client) hold(ctx context.Context, n int) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	errs := make(chan error, n)
	gate := make(chan struct{}, 100) // at a time
	for range n {
		gate <- struct{}{}
		go func() {
			defer func() { <-gate }()
			_, err := c.get(ctx, "/v1/hold") // the body stays open until cancel
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			cancel()
			return nil, err
		}
	}
	return cancel, nil
}

// Slow readers take readPiece every readEvery: 20 kB/s.
const (
	readPiece = 2000 // bytes
	readEvery = 100 * time.Millisecond
)

// slow opens n answers of 20 MiB, reads each at 20 kB/s for the given time and
// returns how many bytes were read in all. The answers stay open until end.
func (c *client) slow(ctx context.Context, n int, length time.Duration) (read int64, end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		total atomic.Int64
		group errgroup.Group
	)
	for range n {
		group.Go(func() error {
			resp, err := c.get(ctx, "/v1/big") // open until cancel
			if err != nil {
				return err
			}
			tick := time.NewTicker(readEvery)
			defer tick.Stop()
			buf := make([]byte, readPiece)
			for stop := time.Now().Add(length); time.Now().Before(stop); <-tick.C {
				n, err := io.ReadFull(resp.Body, buf)
				total.Add(int64(n))
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		cancel()
		return 0, nil, err
	}
	return total.Load(), cancel, nil
}
