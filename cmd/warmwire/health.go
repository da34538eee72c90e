// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthTimeout is below the usual period of an exec probe, 10 s.
const healthTimeout = 3 * time.Second

func healthCommand(path *string) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the running Warmwire whether it is ready (for exec probes)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			if cfg.Admin.Address == "" || cfg.Admin.Address == "none" {
				return fmt.Errorf("health: admin.address is off, so there is nothing to ask")
			}
			endpoint := "/readyz"
			if live {
				endpoint = "/healthz"
			}
			return askHealth(cmd.Context(), cfg.Admin.Address, endpoint)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether it is alive, not whether it takes requests")
	return cmd
}

// askHealth asks the admin listener at address, which may be unix:/path.
func askHealth(ctx context.Context, address, endpoint string) error {
	status, text, err := askAdmin(ctx, address, http.MethodGet, endpoint, "")
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("health: %d %s: %s", status, http.StatusText(status), strings.TrimSpace(string(text)))
	}
	return nil
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
