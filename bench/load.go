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
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A client speaks HTTP/1.1 to one peer, or to the upstream itself.
type client struct {
	base string
	http *http.Client
}

func newClient(base string, ca []byte) *client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &client{base: base, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pool, ClientSessionCache: tls.NewLRUClientSessionCache(16)},
		MaxIdleConnsPerHost: 4000,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		DisableCompression:  true,
	}}}
}

// histogram holds microseconds up to a minute, three digits.
func histogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 3) }

var requestBody = bytes.Repeat([]byte("x"), 600)

func (c *client) post(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(requestBody))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
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

// tokens reads streams at once and records each token's way from the upstream's
// write to our read. A stream that breaks off is counted; none may fail to begin.
func (c *client) tokens(ctx context.Context, s settings, into *hdrhistogram.Histogram) (count int64, cut int, err error) {
	path := fmt.Sprintf("/v1/stream?rate=%d&for=%s", s.rate, s.duration)
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
		now := time.Now().UnixNano()
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
			_, err := c.post(ctx, "/v1/hold") // the body stays open until cancel
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
