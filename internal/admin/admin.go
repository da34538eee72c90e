// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/webguard"
)

// maxBody is more than an empty JSON object with blanks around it needs.
const maxBody = 1 << 10 // 1 KiB

// bodyTimeout is how long such a body may take (guess: it comes with the head).
const bodyTimeout = 10 * time.Second

// Config is what the admin listener serves and who may use it. All functions
// except TrustPeer and Reload are required.
type Config struct {
	Token      string                   // "" = calls that change state are refused, unless TrustPeer allows them
	TrustPeer  func(*http.Request) bool // vouches for the sender without a token, such as a peer on a Unix socket; nil = nobody
	AllowHosts []string                 // names in Host beside loopback and the address the connection came in on
	Remote     bool                     // the listener is bound beyond loopback

	Ready   func() error // nil error = requests are taken; it is shown, so it holds no secret
	Metrics http.Handler
	Status  func() any   // marshalled as JSON
	Streams func() any   // what runs, marshalled as JSON
	Reload  func() error // may take its time; the error is shown to the caller; nil = there is nothing to reload (501)
	// Tune changes settings while the process runs, "" = back to the file's; the error is
	// shown to the caller; nil = it cannot (501).
	Tune func(changes map[string]string) error
	// TuneAndSave is Tune that also writes them into the file, whose name it returns.
	TuneAndSave func(changes map[string]string) (file string, err error)
	// SlowRequests lists the slowest requests by an order, "" = by duration; false = there
	// is no such order. InterruptedRequests lists the last that were. nil = 501.
	SlowRequests        func(by string) (any, bool)
	InterruptedRequests func() any
	// Flight shows the log of a connection to an upstream, or lists the connections if id is
	// 0; false = there is none; nil = 501.
	Flight func(id uint64) (any, bool)
	// Settings are those that Tune takes, with their values, marshalled as JSON; nil = 501.
	Settings func() any
	// Preview says what Tune would change and touch, marshalled as JSON, and changes
	// nothing; nil = 501.
	Preview func(changes map[string]string) (any, error)
	// Configuration is that in force, marshalled as JSON, with its entity tag; nil = 501.
	Configuration func() (any, string)
	// Patch changes it, and answers with what it did and the entity tag then. Its error is
	// shown to the caller and may be ErrMalformed or ErrStale; nil = 501.
	Patch func(ConfigPatch) (any, string, error)
	// FlushDNS forgets what DNS said of a name; "" = of all; nil = 501.
	FlushDNS func(name string)
	// FlushTLS forgets the TLS sessions with a server, "" = with all, and returns how
	// many; nil = 501.
	FlushTLS func(name string) int
	// ClearIntercept forgets that the apps of a host, "" = of all, did not accept our
	// certificate, and returns how many hosts were left alone for it; nil = 501.
	ClearIntercept func(host string) int
	// Upgrade starts a successor and hands over to it, once that serves; the error is
	// shown to the caller, and nothing has changed then; nil = 501.
	Upgrade func(context.Context) error
	Quit    func() // begins the drain and returns
}

// An Admin serves the admin listener.
type Admin struct {
	cfg    Config
	hosts  webguard.Hosts
	token  [sha256.Size]byte // of cfg.Token
	routes map[string]route

	watches atomic.Int32 // callers of /v1/events
}

// A route is one path. Those with POST change state.
type route struct {
	method string
	open   bool // needs no token from beyond loopback
	serve  func(http.ResponseWriter, *http.Request)
	patch  func(http.ResponseWriter, *http.Request) // of PATCH; nil = it is not taken
}

// New checks the configuration and returns the handler.
func New(cfg Config) (*Admin, error) {
	if cfg.Ready == nil || cfg.Metrics == nil || cfg.Status == nil || cfg.Streams == nil || cfg.Quit == nil {
		return nil, errors.New("admin: internal error: a function is missing in Config")
	}
	hosts, err := webguard.ParseHosts(cfg.AllowHosts)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	a := &Admin{cfg: cfg, hosts: hosts, token: sha256.Sum256([]byte(cfg.Token))}
	a.routes = map[string]route{
		"/":                {method: http.MethodGet, serve: a.index},
		"/v1/config":       {method: http.MethodGet, serve: a.configuration, patch: a.patchConfig},
		"/healthz":         {method: http.MethodGet, open: true, serve: a.healthz},
		"/readyz":          {method: http.MethodGet, open: true, serve: a.readyz},
		"/metrics":         {method: http.MethodGet, serve: cfg.Metrics.ServeHTTP},
		"/v1/status":       {method: http.MethodGet, serve: a.status},
		"/v1/streams":      {method: http.MethodGet, serve: a.streams},
		"/v1/openapi.json": {method: http.MethodGet, serve: a.openAPI},
		"/v1/settings":     {method: http.MethodGet, serve: a.settings},
		"/v1/events":       {method: http.MethodGet, serve: a.events},

		"/v1/flights":              {method: http.MethodGet, serve: a.flights},
		"/v1/requests/slowest":     {method: http.MethodGet, serve: a.slowest},
		"/v1/requests/interrupted": {method: http.MethodGet, serve: a.interrupted},

		"/v1/tune/preview":    {method: http.MethodPost, serve: a.preview},
		"/v1/dns/flush":       {method: http.MethodPost, serve: a.flushDNS},
		"/v1/tls/flush":       {method: http.MethodPost, serve: a.flushTLS},
		"/v1/intercept/clear": {method: http.MethodPost, serve: a.clearIntercept},
		"/v1/tune":            {method: http.MethodPost, serve: a.tune},
		"/v1/reload":          {method: http.MethodPost, serve: a.reload},
		"/v1/upgrade":         {method: http.MethodPost, serve: a.upgrade},
		"/v1/quit":            {method: http.MethodPost, serve: a.quit},
	}
	for _, path := range dashboardFiles() {
		a.routes[path] = route{method: http.MethodGet, serve: a.asset}
	}
	return a, nil
}

// ServeHTTP checks who asks, in the order from the cheapest to tell to the most
// exact, and then serves.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	rt, ref := a.admit(w, r)
	if r.ContentLength != 0 && (ref != nil || rt.method == http.MethodGet && r.Method != http.MethodPatch) {
		// Nobody reads this body, but net/http would wait for it, for ever if it
		// never comes. Fails where there is no connection to be held.
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	}
	if ref != nil {
		ref.write(w)
		return
	}
	if r.Method == http.MethodPatch {
		rt.patch(w, r)
		return
	}
	rt.serve(w, r)
}

// admit finds the route, or why there is none for this request.
func (a *Admin) admit(w http.ResponseWriter, r *http.Request) (route, *refusal) {
	if ref := a.checkPage(r); ref != nil {
		return route{}, ref
	}
	rt, found := a.routes[r.URL.Path]
	if !(found && rt.open) && a.remote(r) {
		if ref := a.authorize(r); ref != nil {
			return route{}, ref
		}
	}
	if !found {
		return route{}, &refusal{http.StatusNotFound, "not_found", "there is nothing at this path; GET / lists what there is"}
	}
	if !rt.allows(r.Method) {
		w.Header().Set("Allow", rt.allow()) // RFC 9110 §15.5.6
		return route{}, &refusal{http.StatusMethodNotAllowed, "method_not_allowed", "this path takes " + rt.allow()}
	}
	if r.Method == http.MethodPatch {
		return rt, a.checkPatch(w, r)
	}
	if rt.method == http.MethodPost {
		if ref := a.checkChange(w, r); ref != nil {
			return route{}, ref
		}
	}
	return rt, nil
}

func (rt route) allows(method string) bool {
	return method == rt.method || method == http.MethodPatch && rt.patch != nil || rt.method == http.MethodGet && method == http.MethodHead
}

func (rt route) allow() string {
	switch {
	case rt.patch != nil:
		return "GET, HEAD, PATCH"
	case rt.method == http.MethodGet:
		return "GET, HEAD"
	}
	return rt.method
}

// secure keeps answers from being framed, sniffed, stored or read by pages.
func secure(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
}

// checkPage refuses what only a foreign web page would send.
func (a *Admin) checkPage(r *http.Request) *refusal {
	self := r.Host
	err := webguard.CheckHost(r.Host, func(host string) bool { return a.hosts.Has(host) || isLocalAddr(r, host) })
	if _, network := localAddr(r); err != nil && network == "unix" {
		// No name leads a browser to a Unix socket, and programs put into Host what
		// they like there. Such a name is no origin of ours either.
		self, err = "", nil
	}
	if err == nil {
		err = webguard.CheckOrigin(r.Header, self, webguard.Origins{})
	}
	e, refused := errors.AsType[*webguard.Error](err)
	if !refused {
		return nil
	}
	text := e.Error()
	if e.Code == webguard.CodeHost {
		text += "; use its address or localhost, or list the name in listen.allow_hosts"
	}
	return &refusal{e.Status, e.Code, text}
}

// localAddr is where the connection came in. It is not valid on a Unix socket or
// if it is not known.
func localAddr(r *http.Request) (addr netip.Addr, network string) {
	la, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return netip.Addr{}, ""
	}
	ap, err := netip.ParseAddrPort(la.String())
	if err != nil {
		return netip.Addr{}, la.Network()
	}
	return ap.Addr().Unmap().WithZone(""), la.Network()
}

// isLocalAddr accepts the address that the connection came in on: a listener on
// all addresses is reached by each of them, and a page cannot choose it.
func isLocalAddr(r *http.Request, host string) bool {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	local, _ := localAddr(r)
	return local.IsValid() && local == addr
}

// remote says whether the request may have come from another machine. What is not
// known counts as such.
func (a *Admin) remote(r *http.Request) bool {
	addr, network := localAddr(r)
	return a.cfg.Remote || network != "unix" && !addr.IsLoopback()
}

// checkChange is what a call that changes state must pass. A body must say that it
// is JSON, which a page cannot send without asking first. Whoever knows the token
// is no page and may send no body at all, as curl -X POST does; a peer that is
// trusted for what it is could be a browser.
func (a *Admin) checkChange(w http.ResponseWriter, r *http.Request) *refusal {
	if ref := a.authorize(r); ref != nil {
		return ref
	}
	values, typed := r.Header["Content-Type"]
	if !isJSON(values) && (typed || !a.hasToken(r)) {
		return notJSON()
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails where there is no connection to be held
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = rc.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &refusal{http.StatusRequestTimeout, "body_timeout", "the body of the request did not arrive in " + bodyTimeout.String()}
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &refusal{http.StatusRequestEntityTooLarge, "body_too_large", "this call takes no parameters: send {} or nothing"}
	}
	if !typed && len(body) > 0 {
		return notJSON()
	}
	text := strings.TrimSpace(string(body))
	if err != nil || text != "" && text != "{}" {
		return &refusal{http.StatusBadRequest, "body_not_empty", "this call takes no parameters: send {} or nothing"}
	}
	return nil
}

// authorize wants the token, or a peer that is trusted for what it is.
func (a *Admin) authorize(r *http.Request) *refusal {
	if a.cfg.TrustPeer != nil && a.cfg.TrustPeer(r) {
		return nil
	}
	if a.cfg.Token == "" {
		return &refusal{http.StatusForbidden, "token_not_configured",
			"this call needs a token and none is configured: set admin.token_file, or use the Unix socket of the admin listener"}
	}
	if !a.hasToken(r) {
		return &refusal{http.StatusUnauthorized, "token_required", "send Authorization: Bearer with the token in admin.token_file"}
	}
	return nil
}

func (a *Admin) hasToken(r *http.Request) bool {
	values := r.Header["Authorization"]
	if a.cfg.Token == "" || len(values) != 1 {
		return false
	}
	scheme, given, _ := strings.Cut(values[0], " ")
	sum := sha256.Sum256([]byte(strings.TrimLeft(given, " "))) // equal lengths: the time does not tell the token's
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
}

// isJSON reads the values of Content-Type, of which there may be one.
func isJSON(values []string) bool {
	if len(values) != 1 {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(values[0])
	return err == nil && mediaType == "application/json"
}

func notJSON() *refusal {
	return &refusal{http.StatusUnsupportedMediaType, "json_required", "send Content-Type: application/json"}
}

// A refusal is an answer that says no.
type refusal struct {
	status int
	code   string // stable, for programs
	text   string // for people
}

func (ref *refusal) write(w http.ResponseWriter) {
	if ref.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="warmwire-admin"`) // RFC 6750 §3
	}
	writeJSON(w, ref.status, map[string]any{"error": map[string]string{"code": ref.code, "message": ref.text}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error": {"code": "internal_error", "message": "the answer is no JSON"}}`)
	}
	write(w, status, "application/json", append(body, '\n'))
}

// write sends a whole answer; net/http leaves the body out for HEAD.
func write(w http.ResponseWriter, status int, mediaType string, body []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the caller may be gone, and there is nobody else to tell
}
