// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/config"
)

// readRunning reads what the running process shows at path into v.
func readRunning(ctx context.Context, cfg *config.Config, path string, v any) error {
	status, body, err := askAdmin(ctx, cfg.Admin.Address, http.MethodGet, path, "")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); status != http.StatusOK || err != nil {
		return fmt.Errorf("the admin listener answers %d: %s", status, strings.TrimSpace(string(body)))
	}
	return nil
}

// changeRunning makes a call that changes the running process, within limit. What it
// refuses comes with its reason.
func changeRunning(ctx context.Context, limit time.Duration, cfg *config.Config, target string) (answer []byte, refused string, err error) {
	token, err := adminToken(cfg)
	if err != nil {
		return nil, "", err
	}
	status, body, err := askAdminFor(ctx, limit, cfg.Admin.Address, http.MethodPost, target, token)
	if err != nil || status == http.StatusOK {
		return body, "", err
	}
	var refusal struct{ Error struct{ Message string } }
	if json.Unmarshal(body, &refusal) == nil && refusal.Error.Message != "" {
		body = []byte(refusal.Error.Message)
	}
	return nil, cmp.Or(strings.TrimSpace(string(body)), http.StatusText(status), "no reason is given"), nil
}

// adminToken is what calls need that change something; "" on a Unix socket, which
// knows who asks.
func adminToken(cfg *config.Config) (string, error) {
	if strings.HasPrefix(cfg.Admin.Address, "unix:") {
		return "", nil
	}
	if cfg.Admin.TokenFile == "none" {
		return "", fmt.Errorf("admin.token_file is none: such calls are refused")
	}
	token, err := os.ReadFile(cfg.Admin.TokenFile)
	if err != nil {
		return "", fmt.Errorf("admin.token_file: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// maxAdminAnswer is far above what the admin listener says.
const maxAdminAnswer = 4 << 20

// askAdmin makes a call to the admin listener at address, which may be unix:/path.
func askAdmin(ctx context.Context, address, method, target, token string) (status int, body []byte, err error) {
	return askAdminFor(ctx, healthTimeout, address, method, target, token)
}

// askAdminFor is as askAdmin, for calls that take their time.
func askAdminFor(ctx context.Context, limit time.Duration, address, method, target, token string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			if path, ok := strings.CutPrefix(address, "unix:"); ok {
				return d.DialContext(ctx, "unix", path)
			}
			return d.DialContext(ctx, "tcp", dialable(address))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+target, nil)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%w; is `warmwire run` running with this configuration?", err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAdminAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("read the answer: %w", err)
	}
	return resp.StatusCode, body, nil
}

// dialable replaces the unspecified address, which one can listen on but should
// not dial, by loopback.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}
