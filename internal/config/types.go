// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrInvalid is matched by every error of a configuration.
var ErrInvalid = errors.New("invalid configuration")

// A Config is a whole configuration with its defaults filled in.
type Config struct {
	Listen    Listen
	Admin     Admin
	Upstreams []Upstream // in the order of their names
	Tenants   []Tenant   // likewise; empty = everybody may everything
	Roles     []Role
	JWT       JWT
	Forward   Forward
	Intercept Intercept
	// DefaultTimeouts and DefaultBuffer apply to hosts that are no upstream.
	DefaultTimeouts Timeouts
	DefaultBuffer   Buffer
	ParentProxy     string // URL, or env; "" = none
	NoProxy         []string
	DNS             DNS
	TLS             Sessions
	StateDir        string
	SpoolDir        string
	Limits          Limits
	Log             Log
	Telemetry       Telemetry
	Drain           Drain
}

// Listen is where apps reach us, and who may.
type Listen struct {
	Addresses    []string // host:port or unix:/path
	Token        string
	AllowHosts   []string
	AllowOrigins []string
	AllowUIDs    []uint32
	Via          bool
	ServerTiming bool
}

// Admin is the listener for health, metrics and status.
type Admin struct {
	Address   string // host:port, unix:/path, or none
	TokenFile string // path, or none
}

// Enabled says whether there is an admin listener.
func (a Admin) Enabled() bool { return a.Address != "" && a.Address != "none" }

// An Upstream is one model API, resolved: its own keys over defaults over what is
// built in.
type Upstream struct {
	Name              string
	URL               *url.URL
	Endpoints         []Endpoint // none: URL is where it is
	Routing           Routing
	CongestionControl string // "" = the system's
	QlogDir           string // "" = none
	Dialect           string // openai, anthropic, gemini or none
	Protocols         []string
	Headers           map[string]string
	Timeouts          Timeouts
	ErrorEvent        bool
	Priority          string // interactive, default or batch
	Classes           []ClassRule
	Pool              Pool
	Limits            UpstreamLimits
	Buffer            Buffer
	Retry             Retry
	Resume            bool
	Reconnect         bool
	WebSocketHTTP2    bool
	Reattach          Reattach
	Heartbeat         Heartbeat
	TLS               TLS
	Builtin           bool // not named in the file
}

// Timeouts are the limits of one request by phase; 0 = none.
type Timeouts struct {
	Connect, TLSHandshake, RequestWrite, ResponseHeader, FirstToken, Idle, Total Duration
}

// Pool bounds the connections to one upstream.
type Pool struct {
	Warm, MaxConnections, MaxH1Connections, MaxStreams int
	IdleTimeout, QueueTimeout                          Duration
}

// UpstreamLimits bound the requests to one upstream.
type UpstreamLimits struct {
	Concurrency  int // 0 = no limit
	Adaptive     bool
	Floor        int
	Pace         bool
	Queue        int
	QueueTimeout Duration
}

// Any says whether there is one.
func (l UpstreamLimits) Any() bool { return l.Concurrency > 0 || l.Adaptive || l.Pace }

// Buffer is what happens when an app is slower than its upstream.
type Buffer struct {
	StreamLimit  Size
	Policy       string // pause or spool
	SpoolLimit   Size
	StallTimeout Duration // 0 = never
}

// Reattach is for how long, and how much of it, a stream is kept for an app that lost
// its connection.
type Reattach struct {
	Wait  Duration // 0 = not at all
	Limit Size
}

// Heartbeat is how silent connections are kept.
type Heartbeat struct {
	Mode                              string   // adaptive, fixed or off
	MinInterval, MaxInterval, Timeout Duration // the last two 0 = learned
	SSEComments                       Duration // 0 = none
	Search                            bool
}

// Retry is which requests are sent again, and how often.
type Retry struct {
	MaxAttempts         int
	Budget              float64 // 0 = none
	Statuses            []int
	Resets              bool
	BaseDelay, MaxDelay Duration
	ReplayBody          Size // 0 = none
	Hedge               bool
	HedgeBudget         float64
}

// TLS says whom an upstream's certificate is checked against, and who we are.
type TLS struct {
	CAFile, IntermediatesFile         string
	CAOnly                            bool
	Pins                              []string
	PinsReportOnly                    bool
	ClientCert, ClientKey, MinVersion string
	ECH                               string // off or auto
}

// Sessions says where TLS sessions are kept.
type Sessions struct {
	SessionFile string // "" = in memory only
	SessionKey  string // 32 bytes in base64; "" = one beside the file
}

// Forward is for hosts that are no upstream.
type Forward struct {
	Default     string // tunnel or deny
	Deny        []string
	IdleTimeout Duration // of a tunnel; 0 = none
}

// Intercept names the hosts in whose place Warmwire answers inside a tunnel.
type Intercept struct {
	Hosts []string // lower case; allUpstreams stands for those of the file's https upstreams
	Blind []string // never intercepted, whatever Hosts says
}

// DNS is how names are looked up.
type DNS struct {
	Mode                 string
	Resolvers, Bootstrap []string
	CAFile               string
	Stale, MinTTL        Duration
	CacheFile            string // "" = none
	SystemDomains        []string
	HostsFile, Listen    string
}

// Limits bound the process.
type Limits struct {
	Memory       Size // 0 = auto
	Connections  int
	Header, Body Size
	Procs        int
}

// Log says what is written and how.
type Log struct {
	Level, Format string
	Access        Access
}

// Drain is the way down after SIGTERM.
type Drain struct{ Wait, Timeout, UpgradeTimeout Duration }

// A Duration is written as 250ms, 5m or 1h30m.
type Duration time.Duration

func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func parseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration: write 250ms, 30s or 5m", s)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative: 0s means none", s)
	}
	return Duration(d), nil
}

// A Size is a number of bytes, written as 64KiB, 1MiB or a plain number.
type Size int64

func (n Size) String() string {
	for _, u := range sizeUnits {
		if n != 0 && int64(n)%u.bytes == 0 {
			return strconv.FormatInt(int64(n)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(n), 10)
}

var sizeUnits = [...]struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func parseSize(s string) (Size, error) {
	number, factor := s, int64(1)
	for _, u := range sizeUnits {
		if v, ok := strings.CutSuffix(s, u.name); ok {
			number, factor = v, u.bytes
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > (1<<62)/factor {
		return 0, fmt.Errorf("%q is no size: write 64KiB, 1MiB or a number of bytes", s)
	}
	return Size(n * factor), nil
}
