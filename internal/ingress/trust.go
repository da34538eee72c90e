// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/ingress/peer"
)

// authorize says whether the sender of r may use the route: an upstream that
// adds credentials makes the port worth stealing, and a listener that is not
// loopback is open to the network. It returns nil when it may.
func (t *Table) authorize(r *http.Request, u *Upstream, m Mode) *refusal {
	conn := http1.Conn(r.Context())
	if in := insideOf(r.Context()); in != nil {
		conn = in.conn
	}
	local := isLocal(conn)
	if local && t.Token == "" && (u == nil || !u.injects()) {
		return nil
	}
	if t.Token != "" && (t.tokenOf(r.Header) || t.tokenOf(insideOf(r.Context()).proof())) {
		return nil
	}
	if local && t.trustedUser(conn) {
		return nil
	}
	ref := &refusal{http.StatusUnauthorized, "token_required",
		"this listener needs listen.token, as Warmwire-Token or Proxy-Authorization", m}
	if m == ModeForward || m == ModeTunnel {
		ref.status = http.StatusProxyAuthRequired // RFC 9110 §11.7.1
	}
	if t.Token == "" {
		ref.status, ref.code = http.StatusForbidden, "user_not_allowed"
		ref.message = "this upstream adds credentials, and the connection's user is not the one that runs Warmwire: " +
			"list it in listen.allow_uids or set listen.token"
	}
	return ref
}

// tokenOf compares the token that a request carries in constant time.
func (t *Table) tokenOf(h http.Header) bool {
	given := h.Get(tokenHeader)
	if scheme, value, ok := strings.Cut(h.Get("Proxy-Authorization"), " "); given == "" && ok {
		switch strings.ToLower(scheme) {
		case "bearer":
			given = value
		case "basic": // http://anything:token@host:port in a proxy variable
			raw, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				return false
			}
			_, given, _ = strings.Cut(string(raw), ":")
		}
	}
	return subtle.ConstantTimeCompare([]byte(given), []byte(t.Token)) == 1
}

// trustedUser asks the kernel which user owns the other end.
func (t *Table) trustedUser(c net.Conn) bool {
	info, err := peer.Look(c)
	if err != nil || !info.Seen {
		return false
	}
	return int(info.UID) == os.Getuid() || slices.Contains(t.AllowUIDs, info.UID)
}

// isLocal says whether the connection came over loopback or a Unix socket.
func isLocal(c net.Conn) bool {
	if c == nil {
		return false
	}
	if a := c.RemoteAddr(); a != nil && a.Network() != "tcp" {
		return true // unix, or an in-memory network of a test
	}
	ap, err := netip.ParseAddrPort(c.RemoteAddr().String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}
