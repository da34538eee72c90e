// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// check finds settings that cannot work, or that defeat each other, and warns of
// those that hardly do what is wanted.
func (p *parser) check(cfg *Config, origin func(upstream, key string) (int, string)) []string {
	c := &checker{parser: p, cfg: cfg, origin: origin, warned: make(map[string]bool)}
	c.listeners()
	c.process()
	c.dns()
	c.intercept()
	c.tenants()
	c.telemetry()
	hosts := make(map[string]string)
	for _, u := range cfg.Upstreams {
		c.timeouts(u)
		c.pool(u)
		c.buffer(u)
		c.retry(u)
		c.unreachableRules(u)
		c.limits(u)
		c.endpoints(u)
		c.protocols(u)
		c.headers(u)
		c.files(u)
		c.host(u, hosts)
	}
	return c.warnings
}

type checker struct {
	*parser
	cfg      *Config
	origin   func(upstream, key string) (int, string)
	warnings []string
	warned   map[string]bool
}

func (c *checker) warnf(line int, key, format string, args ...any) {
	w := c.place(line, key) + fmt.Sprintf(format, args...)
	if !c.warned[w] { // what stands under defaults concerns every upstream, but is said once
		c.warned[w] = true
		c.warnings = append(c.warnings, w)
	}
}

func (c *checker) line(path string) int { return c.values[path].line }

func (c *checker) listeners() {
	for i, a := range c.cfg.Listen.Addresses {
		key := "listen.address"
		if _, ok := c.values["listen.addresses"]; ok {
			key = "listen.addresses"
		}
		c.address(key, a)
		for _, other := range c.cfg.Listen.Addresses[:i] {
			if sameListener(a, other) {
				c.addf(c.line(key), key, "%q and %q are the same: remove one", other, a)
			}
		}
		if sameListener(a, c.cfg.Admin.Address) {
			c.addf(c.line("admin.address"), "admin.address", "is the same as listen.address: choose another port")
		}
	}
	if c.cfg.Admin.Address != "none" {
		c.address("admin.address", c.cfg.Admin.Address)
	}
	if c.cfg.Admin.TokenFile == "" {
		c.addf(c.line("admin.token_file"), "admin.token_file", "needs a path, auto or none")
	}
	for _, f := range []struct{ key, path string }{{"admin.token_file", c.cfg.Admin.TokenFile}, {"state_dir", c.cfg.StateDir}} {
		if _, set := c.values[f.key]; set && strings.HasPrefix(f.path, "~") {
			c.addf(c.line(f.key), f.key, "~ is no folder here: write ${HOME}")
		}
	}
	for _, o := range c.cfg.Listen.AllowOrigins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != o {
			c.addf(c.line("listen.allow_origins"), "listen.allow_origins", "%q is no origin: write scheme://host or scheme://host:port",
				withoutUser(o))
		}
	}
	for _, h := range c.cfg.Listen.AllowHosts {
		if strings.ContainsAny(h, "/@*: ") || h == "" {
			c.addf(c.line("listen.allow_hosts"), "listen.allow_hosts", "%q is no host name", withoutUser(h))
		}
	}
}

// protocols wants one over TCP.
func (c *checker) protocols(u Upstream) {
	if slices.Contains(u.Protocols, "h3") && len(u.Protocols) == 1 {
		line, key := c.origin(u.Name, "protocols")
		c.addf(line, key, "h3 needs h2 or http/1.1 beside it: a network may drop UDP")
	}
}

// sameListener says whether two addresses cannot both be listened on.
func sameListener(a, b string) bool {
	ha, pa, errA := net.SplitHostPort(a)
	hb, pb, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || strings.HasPrefix(a, "unix:") {
		return a == b
	}
	all := func(h string) bool { ip, err := netip.ParseAddr(h); return h == "" || err == nil && ip.IsUnspecified() }
	return pa == pb && pa != "0" && (loopbackName(ha) == loopbackName(hb) || all(ha) || all(hb))
}

func loopbackName(h string) string {
	if h == "localhost" {
		return "127.0.0.1"
	}
	return h
}

// address checks a listener's address: outside loopback it needs a token.
func (c *checker) address(key, a string) {
	if path, ok := strings.CutPrefix(a, "unix:"); ok {
		if path == "" {
			c.addf(c.line(key), key, "unix: needs a path")
		}
		return
	}
	host, port, err := net.SplitHostPort(a)
	if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil {
		c.addf(c.line(key), key, "%q is neither host:port nor unix:/path", a)
		return
	}
	ip, err := netip.ParseAddr(host)
	if host == "localhost" || err == nil && ip.IsLoopback() {
		return
	}
	if c.cfg.Listen.Token == "" && (key == "admin.address" || len(c.cfg.Tenants) == 0) {
		c.addf(c.line(key), key, "%q is reachable from outside this host: set listen.token, or listen on 127.0.0.1", a)
	}
}

func (c *checker) process() {
	l := c.cfg.Limits
	if l.Header < 4<<10 || l.Header > 1<<20 {
		c.addf(c.line("limits.header"), "limits.header", "%v is outside 4KiB to 1MiB", l.Header)
	}
	c.access()
	if d := c.cfg.Drain; time.Duration(d.Wait+d.Timeout) > 30*time.Second {
		c.warnf(c.line("drain.timeout"), "drain", "wait and timeout together are longer than 30 s, after which Kubernetes kills by default: "+
			"raise terminationGracePeriodSeconds")
	}
	c.patterns("forward.deny", c.cfg.Forward.Deny)
	if d := time.Duration(c.cfg.Forward.IdleTimeout); d != 0 && d < time.Second {
		c.addf(c.line("forward.idle_timeout"), "forward.idle_timeout", "%v is below 1s; 0s means no limit", d)
	}
	c.patterns("no_proxy", c.cfg.NoProxy)
	if d := time.Duration(c.cfg.Drain.Timeout); d == 0 {
		c.warnf(c.line("drain.timeout"), "drain.timeout", "0s cuts every stream at once when Warmwire is stopped")
	}
	if pp := c.cfg.ParentProxy; pp != "" && pp != "env" {
		u, err := url.Parse(pp)
		if err != nil || u.Scheme != "http" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" ||
			!validHost(u.Hostname()) || !validPort(u.Port(), "80") {
			c.addf(c.line("parent_proxy"), "parent_proxy", "needs http://host:port, http://user:pass@host:port, or env")
		}
	}
}

func (c *checker) patterns(key string, list []string) {
	for _, e := range list {
		if !validPattern(e) {
			c.addf(c.line(key), key, "%q is no name, .suffix, address or prefix", withoutUser(e))
		}
	}
}

// withoutUser hides what stands before an @, which may be a password.
func withoutUser(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return hidden + s[i:]
	}
	return s
}

// validHost accepts names as they stand in DNS, and addresses.
func validHost(h string) bool {
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	return h != "" && len(h) <= 254 && !strings.ContainsFunc(h, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

func validPort(port, otherwise string) bool {
	n, err := strconv.ParseUint(cmp.Or(port, otherwise), 10, 16)
	return err == nil && n > 0
}

// validPattern accepts what forward.deny and no_proxy may hold.
func validPattern(e string) bool {
	if strings.Contains(e, "/") {
		_, err := netip.ParsePrefix(e)
		return err == nil
	}
	if _, err := netip.ParseAddr(strings.Trim(e, "[]")); err == nil {
		return true
	}
	name := strings.TrimPrefix(strings.TrimPrefix(e, "*"), ".")
	return name != "" && !strings.ContainsAny(name, "*:@[] ")
}

// timeouts refuses limits that can never act because a shorter one covers them:
// an upload that is cut by the total, say, looks like a stall of the upstream.
func (c *checker) timeouts(u Upstream) {
	t := u.Timeouts
	phases := []struct {
		key string
		d   Duration
	}{
		{"timeouts.connect", t.Connect}, {"timeouts.tls_handshake", t.TLSHandshake}, {"timeouts.request_write", t.RequestWrite},
		{"timeouts.first_token", t.FirstToken}, {"timeouts.response_header", t.ResponseHeader}, {"timeouts.idle", t.Idle},
	}
	if t.Total > 0 {
		line, key := c.origin(u.Name, "timeouts.total")
		var covered []string // limits nobody set, which the total replaces
		for _, ph := range phases {
			_, other := c.origin(u.Name, ph.key)
			_, set := c.values[other]
			switch {
			case ph.d <= t.Total:
			case set:
				c.addf(line, key, "%v is shorter than %s (%v), which can then never act: raise timeouts.total, set it to 0s, or lower %s",
					t.Total, other, ph.d, ph.key)
			default:
				covered = append(covered, fmt.Sprintf("%s (%v)", ph.key, ph.d))
			}
		}
		c.warnf(line, key, "healthy streams are cut after %v: leave it at 0s unless you mean that", t.Total)
		if len(covered) > 0 {
			c.warnf(line, key, "%v is shorter than the defaults of %s: a slow upload or answer is cut as a total, not as a stall", t.Total,
				strings.Join(covered, ", "))
		}
	}
	if line, key := c.origin(u.Name, "timeouts.connect"); t.Connect > 0 && time.Duration(t.Connect) < 300*time.Millisecond {
		c.warnf(line, key, "%v hardly leaves time to try a second address, which begins after 250ms (RFC 8305): raise it", t.Connect)
	}
	if line, key := c.origin(u.Name, "timeouts.idle"); t.Idle > 0 && time.Duration(t.Idle) < 15*time.Second {
		c.warnf(line, key, "%v is a pause that a model may make: raise it", t.Idle)
	}
	if line, key := c.origin(u.Name, "timeouts.response_header"); t.ResponseHeader > 0 && time.Duration(t.ResponseHeader) < 10*time.Minute {
		c.warnf(line, key, "%v is shorter than the 10m that the SDKs wait for a long answer: raise it", t.ResponseHeader)
	}
}

// pool refuses bounds that leave no connection, or that contradict each other.
func (c *checker) pool(u Upstream) {
	for _, b := range []struct {
		key            string
		n, least, most int
	}{
		{"pool.warm", u.Pool.Warm, 0, 64}, {"pool.max_connections", u.Pool.MaxConnections, 1, 1000},
		{"pool.max_h1_connections", u.Pool.MaxH1Connections, 1, 100_000}, {"pool.max_streams", u.Pool.MaxStreams, 1, 100_000},
	} {
		if b.n < b.least || b.n > b.most {
			line, key := c.origin(u.Name, b.key)
			c.addf(line, key, "%d is outside %d to %d", b.n, b.least, b.most)
		}
	}
	if most := min(u.Pool.MaxConnections, u.Pool.MaxH1Connections); u.Pool.Warm > most && most > 0 {
		line, key := c.origin(u.Name, "pool.warm")
		c.addf(line, key, "%d are more than pool.max_connections or pool.max_h1_connections allows (%d)", u.Pool.Warm, most)
	}
	if line, key := c.origin(u.Name, "pool.queue_timeout"); u.Pool.QueueTimeout <= 0 {
		c.addf(line, key, "needs a time above 0s: a request without a connection cannot wait for ever")
	}
}

// buffer wants room for at least one read, and a limit that a pausing app survives.
func (c *checker) buffer(u Upstream) {
	b := u.Buffer
	line, key := c.origin(u.Name, "buffer.stream_limit")
	if b.StreamLimit < 16<<10 || b.StreamLimit > 1<<30 {
		c.addf(line, key, "%v is outside 16KiB to 1GiB", b.StreamLimit)
	} else if m := c.cfg.Limits.Memory; m > 0 && b.StreamLimit > m {
		c.addf(line, key, "%v is more than limits.memory (%v): lower it, or raise limits.memory", b.StreamLimit, m)
	}
	if line, key := c.origin(u.Name, "buffer.spool_limit"); b.Policy == "spool" && b.SpoolLimit <= b.StreamLimit {
		c.addf(line, key, "%v is not more than buffer.stream_limit (%v), which is kept in memory: raise it, or leave the policy at pause", b.SpoolLimit, b.StreamLimit)
	}
	if line, key := c.origin(u.Name, "reattach.limit"); u.Reattach.Wait > 0 && u.Reattach.Limit < 128<<10 {
		c.addf(line, key, "%v is less than 128KiB", u.Reattach.Limit)
	}
	if (b.Policy == "spool" || u.Reattach.Wait > 0) && c.cfg.SpoolDir == "" {
		c.addf(c.line("spool_dir"), "spool_dir", "none leaves no place for buffer.policy spool or reattach of upstream %s: name a folder", u.Name)
	}
	h := u.Heartbeat
	if line, key := c.origin(u.Name, "heartbeat.min_interval"); h.MinInterval < Duration(time.Second) || h.MinInterval > Duration(5*time.Minute) {
		c.addf(line, key, "%v is outside 1s to 5m", h.MinInterval)
	}
	if line, key := c.origin(u.Name, "heartbeat.max_interval"); h.MaxInterval > 0 && h.MaxInterval < h.MinInterval {
		c.addf(line, key, "%v is below heartbeat.min_interval (%v)", h.MaxInterval, h.MinInterval)
	}
	if line, key := c.origin(u.Name, "heartbeat.timeout"); h.Timeout > 0 && h.Timeout < Duration(time.Second) {
		c.warnf(line, key, "%v is a delay that a living path may have: leave it at 0s, which follows the measured round trips", h.Timeout)
	}
	if line, key := c.origin(u.Name, "heartbeat.sse_comments"); u.Heartbeat.SSEComments > 0 && time.Duration(u.Heartbeat.SSEComments) < time.Second {
		c.addf(line, key, "%v is less than 1s", u.Heartbeat.SSEComments)
	}
	if line, key := c.origin(u.Name, "buffer.stall_timeout"); b.StallTimeout > 0 && time.Duration(b.StallTimeout) < 10*time.Second {
		c.warnf(line, key, "%v is a pause that an app may make: raise it", b.StallTimeout)
	}
}

// retry refuses shares that are none, and pauses and statuses that cannot be meant.
func (c *checker) retry(u Upstream) {
	r := u.Retry
	addf := func(path, format string, args ...any) {
		line, key := c.origin(u.Name, "retry."+path)
		c.addf(line, key, format, args...)
	}
	if r.MaxAttempts > 10 {
		addf("max_attempts", "%d is outside 1 to 10", r.MaxAttempts)
	}
	for path, share := range map[string]float64{"budget": r.Budget, "hedge_budget": r.HedgeBudget} {
		if !(share >= 0 && share <= 1) {
			addf(path, "%v is outside 0 to 1", share)
		}
	}
	if r.Hedge && r.HedgeBudget == 0 {
		addf("hedge_budget", "0 leaves nothing for retry.hedge: raise it, or set retry.hedge to false")
	}
	if r.BaseDelay <= 0 || r.BaseDelay > r.MaxDelay {
		addf("base_delay", "%v is not between 0s and retry.max_delay (%v)", r.BaseDelay, r.MaxDelay)
	}
	for _, status := range r.Statuses {
		if status < 400 || status > 599 {
			addf("statuses", "%d is no status of an error, 400 to 599", status)
		}
	}
	if m := c.cfg.Limits.Memory; m > 0 && r.ReplayBody > m {
		addf("replay_body", "%v is more than limits.memory (%v)", r.ReplayBody, m)
	}
}

// notInjectable are fields of one connection, framing and routing: they are ours
// to write.
var notInjectable = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade",
	"Content-Length", "Host", "Proxy-Authorization", "Expect"}

func (c *checker) headers(u Upstream) {
	line, key := c.origin(u.Name, "headers.set")
	for _, name := range slices.Sorted(maps.Keys(u.Headers)) {
		v := u.Headers[name]
		if !httpguts.ValidHeaderFieldName(name) {
			c.addf(line, key, "%q is no field name", name)
		}
		if !httpguts.ValidHeaderFieldValue(v) {
			c.addf(line, key, "the value of %s has bytes that no field may have", name)
		}
		for _, n := range notInjectable {
			if strings.EqualFold(n, name) {
				c.addf(line, key, "%s belongs to the connection and cannot be set", name)
			}
		}
	}
}

func (c *checker) files(u Upstream) {
	if (u.TLS.ClientCert == "") != (u.TLS.ClientKey == "") {
		line, key := c.origin(u.Name, "tls.client_cert")
		c.addf(line, key, "tls.client_cert and tls.client_key go together: set both")
	}
	if u.TLS.CAOnly && u.TLS.CAFile == "" {
		line, key := c.origin(u.Name, "tls.ca_only")
		c.addf(line, key, "tls.ca_only without tls.ca_file trusts nobody: set tls.ca_file")
	}
	if u.TLS.PinsReportOnly && len(u.TLS.Pins) == 0 {
		line, key := c.origin(u.Name, "tls.pins_report_only")
		c.addf(line, key, "tls.pins_report_only without tls.pins does nothing: set tls.pins")
	}
	for _, f := range []struct{ key, path string }{
		{"tls.ca_file", u.TLS.CAFile}, {"tls.intermediates_file", u.TLS.IntermediatesFile}, {"tls.client_cert", u.TLS.ClientCert}, {"tls.client_key", u.TLS.ClientKey},
	} {
		if f.path == "" {
			continue
		}
		line, key := c.origin(u.Name, f.key)
		if info, err := os.Stat(f.path); err != nil {
			c.addf(line, key, "%v", err)
		} else if info.IsDir() {
			c.addf(line, key, "%s is a folder", f.path)
		}
	}
}

// host refuses two upstreams that a Host field cannot tell apart, and warns of
// keys sent in clear.
func (c *checker) host(u Upstream, hosts map[string]string) {
	ip, err := netip.ParseAddr(u.URL.Hostname())
	loopback := u.URL.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	line, key := c.origin(u.Name, "url")
	if !validPort(u.URL.Port(), "443") {
		c.addf(line, key, "port %s is outside 1 to 65535", u.URL.Port())
	}
	if loopback {
		return
	}
	if u.URL.Scheme == "http" {
		c.warnf(line, key, "http:// sends keys and prompts in clear over the network")
	}
	port := u.URL.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.URL.Scheme]
	}
	hp := net.JoinHostPort(strings.TrimSuffix(strings.ToLower(u.URL.Hostname()), "."), port)
	other, taken := hosts[hp]
	hosts[hp] = u.Name
	if !taken {
		return
	}
	if u.Builtin { // the one in the file is to be changed
		line, key = c.origin(other, "url")
		other = u.Name
	}
	c.addf(line, key, "has the same host as upstream %s: a Host field cannot tell them apart; write its settings under %s, or disable one (disabled: true)",
		other, other)
}
