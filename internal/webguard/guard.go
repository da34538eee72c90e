// SPDX-License-Identifier: Apache-2.0

package webguard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// The codes of refusals. They are stable, and also metric labels.
const (
	CodeHost      = "host_not_allowed"
	CodeOrigin    = "origin_not_allowed"
	CodeFetchSite = "cross_site_request"
)

// An Error is a refusal. Its text holds nothing that the request brought, so that
// it can be logged and shown.
type Error struct {
	Code   string
	Status int // the HTTP status that fits
	text   string
}

func (e *Error) Error() string { return e.text }

// CheckHost refuses a request by its Host field, or :authority: nil when it parses
// and is loopback or own says yes to it, given as [ParseAuthority] gives it. The
// port is not compared, since a port may be mapped on the way; a page that a
// browser has rebound shows in the name. The error is an [*Error].
func CheckHost(host string, own func(host string) bool) error {
	name, _, err := ParseAuthority(host)
	if err != nil {
		return &Error{CodeHost, http.StatusForbidden, "the Host of the request is not valid: " + err.Error()}
	}
	if !IsLoopback(name) && !own(name) {
		return &Error{CodeHost, http.StatusForbidden, "the Host of the request is not one of this listener's"}
	}
	return nil
}

// CheckOrigin refuses a request that a foreign web page made: nil when the
// browser's fields are absent, name the listener itself, or name an origin in
// allowed.
//
// self is host:port of the listener as the app addressed it: the Host of a request
// that has passed [CheckHost], where that Host is the listener's own; "" if no
// page can be the listener's own. The listener speaks no TLS, so that its own
// origin begins with http://. The error is an [*Error].
func CheckOrigin(h http.Header, self string, allowed Origins) error {
	site, err := fetchSite(h)
	if err != nil {
		return err
	}
	values, present := h["Origin"]
	if !present {
		if site != "" {
			return &Error{CodeFetchSite, http.StatusForbidden, "the request comes from another site's web page"}
		}
		return nil
	}
	if len(values) != 1 {
		return &Error{CodeOrigin, http.StatusForbidden, "the request has more than one Origin"}
	}
	origin, ok := parseOrigin(values[0])
	if !ok {
		return &Error{CodeOrigin, http.StatusForbidden, "the Origin of the request is opaque or not valid"}
	}
	if allowed.set[origin] {
		return nil // its requests are cross-site by nature
	}
	if own, ok := parseOrigin("http://" + self); !ok || origin != own {
		return &Error{CodeOrigin, http.StatusForbidden, "the Origin of the request is another web page"}
	}
	if site != "" {
		return &Error{CodeFetchSite, http.StatusForbidden, "the request comes from another site's web page"}
	}
	return nil
}

// fetchSite returns "" where the browser says that no other site had a part in
// the request, or says nothing; otherwise what it says. Values that do not exist
// yet count as foreign.
func fetchSite(h http.Header) (string, error) {
	values := h["Sec-Fetch-Site"]
	if len(values) > 1 {
		return "", &Error{CodeFetchSite, http.StatusForbidden, "the request has more than one Sec-Fetch-Site"}
	}
	if len(values) == 0 || values[0] == "none" || values[0] == "same-origin" {
		return "", nil
	}
	return "foreign", nil
}

// Origins is a set of web origins that an operator allows. The zero value holds
// none.
type Origins struct {
	set map[origin]bool
}

// ParseOrigins reads scheme://host[:port]. A wildcard and null are refused: null
// is what every sandboxed page sends.
func ParseOrigins(list []string) (Origins, error) {
	o := Origins{set: make(map[origin]bool, len(list))}
	for _, entry := range list {
		parsed, ok := parseOrigin(entry)
		if !ok {
			return Origins{}, fmt.Errorf("allowed origin %q: want scheme://host or scheme://host:port, nothing after it", entry)
		}
		o.set[parsed] = true
	}
	return o, nil
}

// An origin is what browsers compare (RFC 6454 §4), in one spelling.
type origin struct {
	scheme, host, port string
}

// parseOrigin reads the value of an Origin field: RFC 6454 §7.1 has no path, no
// user and no query in it.
func parseOrigin(s string) (origin, bool) {
	scheme, authority, ok := strings.Cut(s, "://")
	if !ok || !isScheme(scheme) {
		return origin{}, false
	}
	host, port, err := ParseAuthority(authority)
	if err != nil {
		return origin{}, false
	}
	o := origin{strings.ToLower(scheme), host, port}
	if port == "" {
		switch o.scheme {
		case "http", "ws":
			o.port = "80"
		case "https", "wss":
			o.port = "443"
		}
	}
	return o, true
}

// isScheme follows RFC 3986 §3.1.
func isScheme(s string) bool {
	u, err := url.Parse(s + "://x")
	return err == nil && s != "" && strings.EqualFold(u.Scheme, s)
}
