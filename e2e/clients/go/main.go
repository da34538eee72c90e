// SPDX-License-Identifier: Apache-2.0

// Command go is the Go client of the client matrix: go NAME. Everything else is
// in the environment, as for the clients in other languages beside it. It prints
// "first" at the first piece of the answer, and at the end one line of JSON.
package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/gorilla/websocket"
)

// An answer counts and hashes its pieces.
type answer struct {
	hash     hash.Hash
	chunks   int
	protocol string
}

func (a *answer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if a.chunks++; a.chunks == 1 {
		fmt.Println("first")
	}
	return a.hash.Write(p)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: go nethttp|nethttp-h2c|gorilla")
	}
	proxy, trust, err := surroundings()
	if err != nil {
		return err
	}
	a := &answer{hash: sha256.New()}
	switch args[0] {
	case "nethttp":
		err = call(a, &http.Transport{Proxy: proxy, TLSClientConfig: trust, ForceAttemptHTTP2: true})
	case "nethttp-h2c":
		var p http.Protocols
		p.SetUnencryptedHTTP2(true)
		err = call(a, &http.Transport{Proxy: proxy, Protocols: &p})
	case "gorilla":
		err = talk(a, &websocket.Dialer{Proxy: proxy, TLSClientConfig: trust, Subprotocols: []string{"realtime"}})
	default:
		err = fmt.Errorf("unknown client %q", args[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"text_sha256": hex.EncodeToString(a.hash.Sum(nil)), "chunks": a.chunks, "protocol": a.protocol,
	})
}

// surroundings are the proxy and what is to be trusted. Intercepted, both are what Go
// finds by itself.
func surroundings() (proxy func(*http.Request) (*url.URL, error), trust *tls.Config, err error) {
	if mode := os.Getenv("E2E_MODE"); mode == "intercepted" || mode == "exec" {
		return http.ProxyFromEnvironment, nil, nil
	}
	if trust, err = trusted(os.Getenv("E2E_CA")); err != nil {
		return nil, nil, err
	}
	if p := os.Getenv("E2E_PROXY"); p != "" {
		u, err := url.Parse(p)
		if err != nil {
			return nil, nil, err
		}
		// Not ProxyFromEnvironment: that leaves loopback targets out.
		proxy = http.ProxyURL(u)
	}
	return proxy, trust, nil
}

func trusted(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", file)
	}
	return &tls.Config{RootCAs: pool}, nil
}

func call(a *answer, t *http.Transport) error {
	body, err := json.Marshal(map[string]any{
		"model": os.Getenv("E2E_MODEL"), "stream": true,
		"messages": []map[string]string{{"role": "user", "content": "hello"}},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, os.Getenv("E2E_ORIGIN")+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+os.Getenv("E2E_KEY"))
	req.Header.Set("Traceparent", os.Getenv("E2E_TRACEPARENT"))
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body) // the status is the error to report
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	a.protocol = resp.Proto
	_, err = io.Copy(a, resp.Body)
	return err
}

func talk(a *answer, d *websocket.Dialer) error {
	target := strings.Replace(os.Getenv("E2E_ORIGIN"), "http", "ws", 1) + "/v1/realtime?model=" + url.QueryEscape(os.Getenv("E2E_MODEL"))
	conn, resp, err := d.Dial(target, http.Header{
		"Authorization": {"Bearer " + os.Getenv("E2E_KEY")}, "Traceparent": {os.Getenv("E2E_TRACEPARENT")},
	})
	if err != nil {
		if resp != nil {
			text, _ := io.ReadAll(resp.Body) // the handshake's error is the one to report
			return fmt.Errorf("%w: %s: %s", err, resp.Status, text)
		}
		return err
	}
	defer conn.Close()
	a.protocol = conn.Subprotocol()
	if err := conn.WriteJSON(map[string]string{"type": "response.create"}); err != nil {
		return err
	}
	for {
		var event struct {
			Type  string
			Delta json.RawMessage // text, or audio that nobody asked for
		}
		if err := conn.ReadJSON(&event); err != nil {
			return err
		}
		switch event.Type {
		case "response.output_text.delta":
			var text string
			if err := json.Unmarshal(event.Delta, &text); err != nil {
				return err
			}
			if _, err := io.WriteString(a, text); err != nil {
				return err
			}
		case "response.done":
			return conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, "done"))
		}
	}
}
