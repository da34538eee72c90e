// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/warmwire/warmwire/transport/dial"
)

// DialFunc opens a connection to host:port.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// ThroughParent returns a dial function that goes through the parent proxy which
// pick names for a target, by CONNECT, and direct where pick names none. Names
// of targets that go through it are resolved by it. The exchange with the parent
// has the limit that a connection has. check, if not nil, may refuse a target
// that the parent would reach for us.
func ThroughParent(direct DialFunc, pick func(addr string) (*url.URL, error), limit time.Duration, check func(addr string) error) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		parent, err := pick(addr)
		if err != nil {
			return nil, parentError("parent_proxy_failed", addr, err)
		}
		if parent == nil {
			return direct(ctx, network, addr)
		}
		if check != nil {
			if err := check(addr); err != nil {
				return nil, dial.Denied(addr, err)
			}
		}
		return connectThrough(ctx, direct, parent, addr, limit)
	}
}

func parentError(kind, addr string, err error) *dial.Error {
	return &dial.Error{Step: "connect", Kind: kind, Addr: addr, Limit: "timeouts.connect", Err: fmt.Errorf("parent_proxy: %w", err)}
}

// connectThrough opens a tunnel to addr (RFC 9110 §9.3.6). An IPv6 address keeps
// its brackets.
func connectThrough(ctx context.Context, direct DialFunc, parent *url.URL, addr string, limit time.Duration) (net.Conn, error) {
	port := parent.Port()
	if port == "" {
		port = "80"
	}
	c, err := direct(ctx, "tcp", net.JoinHostPort(parent.Hostname(), port))
	if err != nil {
		return nil, parentError("parent_proxy_failed", addr, err)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(limited, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	early, err := exchangeConnect(c, parent, addr)
	stopped := stop()
	if err == nil && !stopped {
		err = limited.Err()
	}
	if err != nil {
		_ = c.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if limited.Err() != nil {
			e := parentError("parent_proxy_failed", addr, fmt.Errorf("it did not answer CONNECT within %v", limit))
			e.Expired = true
			return nil, e
		}
		return nil, err
	}
	if len(early) > 0 {
		return &prefixed{Conn: c, early: bytes.NewReader(early)}, nil
	}
	return c, nil
}

// exchangeConnect asks for the tunnel and returns bytes that came behind the
// answer already.
func exchangeConnect(c net.Conn, parent *url.URL, addr string) ([]byte, error) {
	var head bytes.Buffer
	fmt.Fprintf(&head, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n", addr, addr)
	if u := parent.User; u != nil {
		password, _ := u.Password()
		fmt.Fprintf(&head, "Proxy-Authorization: Basic %s\r\n", base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	head.WriteString("\r\n")
	if _, err := c.Write(head.Bytes()); err != nil {
		return nil, parentError("parent_proxy_failed", addr, err)
	}
	in := bufio.NewReader(io.LimitReader(c, 64<<10)) // a CONNECT answer has no business being longer
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, parentError("parent_proxy_failed", addr, fmt.Errorf("read its answer: %w", err))
	}
	if resp.StatusCode/100 != 2 {
		return nil, parentError("parent_proxy_refused", addr, fmt.Errorf("it answered %s to CONNECT", resp.Status))
	}
	early, _ := in.Peek(in.Buffered())
	return bytes.Clone(early), nil
}

// prefixed gives bytes first that were read together with the CONNECT answer.
type prefixed struct {
	net.Conn
	early *bytes.Reader
}

func (p *prefixed) Read(b []byte) (int, error) {
	if p.early.Len() > 0 {
		return p.early.Read(b)
	}
	return p.Conn.Read(b)
}

// CloseWrite ends the sending side alone.
func (p *prefixed) CloseWrite() error {
	if h, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}
