// SPDX-License-Identifier: Apache-2.0

package arch

const module = "github.com/warmwire/warmwire"

const (
	maxFunctionLines = 80
	maxFileLines     = 800
)

// A rules value is what one tree is checked against.
type rules struct {
	// packages is the import table: for each package (a pattern ending in /...
	// covers what is below it), the packages of ours that it may import, with
	// the reason. A package without an entry is a fault: its place in the house
	// is decided here first. The most exact entry counts.
	packages map[string]map[string]string
	// tests may be imported by every _test.go file in addition.
	tests map[string]string
	// libraries names the only packages that may know an outside library.
	libraries map[string]library
	// silent packages never log: they return errors and keep counters.
	silent map[string]string
	// ambient packages, besides those named main, may use flags, the
	// environment and os.Exit.
	ambient map[string]string
	// inits and sleeps are files that may have an init function, or a test
	// that waits on the real clock.
	inits, sleeps map[string]string
}

// A library is an outside module that few packages may know.
type library struct {
	only   []string // package patterns
	reason string
}

// nothing is the table entry of a package that imports nothing of ours.
var nothing = map[string]string{}

// houseRules is the import table of the project, see docs/ARCHITECTURE.md.
var houseRules = rules{
	packages: map[string]map[string]string{
		"cmd/warmwire": {
			"internal/sidecar":              "the one place that builds and runs both halves",
			"internal/config":               "config check, show, default and schema",
			"internal/mockapi":              "demo runs it",
			"internal/measure":              "demo and measure time calls with it",
			"internal/netlab":               "the forwarder of a lab is this program, started again",
			"internal/lab":                  "runs the scenarios of the lab",
			"dnscache":                      "doctor compares resolvers",
			"tlspool/inspect":               "doctor examines the TLS of a host",
			"tlspool/trust":                 "the bundle holds the system's roots",
			"internal/intercept/ca":         "ca shows and rotates the authority",
			"internal/intercept/truststore": "ca installs it",
			"internal/clientenv":            "exec, env and doctor: which variables lead which program here",
			"internal/reach":                "doctor says how hosts are reached",
			"internal/ingress/peer":         "exec asks whose the Warmwire is that runs already",
			"internal/activation":           "run takes over sockets, and passes them on",
			"internal/sdnotify":             "run tells systemd how it does",
			"internal/logqueue":             "the process's log goes through it",
		},
		"internal/sidecar": {"...": "composition root: sees everything and maps between the packages"},

		"internal/ingress/...": {
			"internal/ingress/...":  "its own parts",
			"internal/dialect":      "the relay loop shows it a copy of the stream",
			"internal/webguard":     "both listeners refuse what a web page could send",
			"internal/tenant":       "who asks, and for how much",
			"internal/intercept":    "what the first bytes of a tunnel are, and which hosts are left alone",
			"internal/intercept/ca": "its tests",
			"bufferctl":             "answers that their upstream gives faster than the app takes them",
			"internal/attribution":  "where the time of an answer went",
		},
		"internal/intercept":            nothing,
		"internal/intercept/ca":         nothing,
		"internal/intercept/truststore": {"internal/intercept/ca": "its tests"},
		"internal/clientenv":            {"internal/intercept/ca": "the bundles that its variables name"},
		"internal/reach":                nothing,
		"internal/netwatch":             nothing,
		"internal/attribution":          nothing,

		"transport": {
			"transport/contract": "its tests",
			"transport/dial":     "its own parts", "transport/pool": "its own parts", "transport/fault": "its own parts",
			"transport/h1": "its own parts", "transport/h2": "its own parts", "transport/h3": "its own parts",
			"transport/semantics": "classes of its requests",
			"transport/layer":     "knows when an answer is closed",
			"transport/h3/altsvc": "who offers HTTP/3",
			"tlspool":             "sessions of its connections",
			"tlspool/trust":       "whom they trust",
			"heartbeat":           "advises each connection",
			"bufferctl":           "the buffers of its streams",

			"transport/flight":     "its own parts",
			"internal/attribution": "the form in which a connection shows what its network does",
		},
		"transport/dial":      nothing,
		"transport/fault":     nothing,
		"transport/flight":    nothing,
		"transport/semantics": nothing,
		"transport/upload":    nothing,
		"transport/contract":  {"transport/fault": "typed errors"},
		"transport/h1":        {"bufferctl": "receive windows are its buffers", "heartbeat": "advises the connection", "transport/fault": "typed errors", "transport/contract": "its tests"},
		"transport/h2":        {"transport/semantics": "what HTTP/2 and HTTP/3 share", "transport/upload": "reads bodies", "bufferctl": "receive windows are its buffers", "heartbeat": "advises the connection", "transport/fault": "typed errors", "transport/contract": "its tests"},
		"transport/h3":        {"transport/semantics": "what HTTP/2 and HTTP/3 share", "transport/upload": "reads bodies", "bufferctl": "receive windows are its buffers", "heartbeat": "advises the connection", "transport/fault": "typed errors", "transport/contract": "its tests"},
		"transport/h3/altsvc": nothing,
		"transport/pool":      {"heartbeat": "learned limits decide when a connection is replaced", "transport/fault": "typed errors"},
		// Layers wrap a RoundTripper and know neither each other nor transport.
		"transport/qos":    {"transport/hints": "what answers say of limits", "transport/layer": "is told how an answer goes"},
		"transport/retry":  {"transport/hints": "what answers say of limits", "transport/layer": "knows when an answer is closed"},
		"transport/hints":  nothing,
		"transport/resume": nothing,
		"transport/route":  {"transport/layer": "is told how an answer goes"},
		"transport/layer":  nothing,

		// Leaves take what they need from others as a func.
		"dnscache":          {"dnscache/exchange": "its own parts"},
		"dnscache/exchange": nothing,
		"tlspool":           nothing,
		"tlspool/trust":     nothing,
		"tlspool/inspect":   {"tlspool/trust": "pins and must-staple are read in one place"},
		"bufferctl":         nothing,
		"heartbeat":         nothing,

		// sidecar maps between these; none knows another.
		"internal/config":    nothing,
		"internal/dialect":   nothing,
		"internal/metrics":   nothing,
		"internal/accesslog": {"bufferctl": "its records wait in a bounded ring"},
		"internal/logqueue":  nothing,
		"internal/otlp":      {"transport/hints": "when a collector may be asked again"},
		"internal/telemetry": {"internal/otlp": "the protocol in which it speaks"},
		"internal/admin":     {"internal/webguard": "both listeners refuse what a web page could send"},
		"internal/webguard":  nothing,
		"internal/tenant":    nothing,

		"internal/activation": nothing,
		"internal/sdnotify":   nothing,

		// What tests and demonstrations are made with knows nothing of the
		// product, so that it cannot share the product's mistakes.
		"internal/mockapi": nothing,
		"internal/netlab":  nothing,
		"internal/testenv": nothing,
		"internal/arch":    nothing,
		"internal/lab": {
			"internal/netlab":  "the network it measures in",
			"internal/mockapi": "the server it measures against",
		},
		"internal/measure": {
			"dnscache/exchange": "a phase of a call is a lookup, and resolvers are compared",
			"tlspool":           "a phase of a call is a handshake",
			"tlspool/inspect":   "kinds of handshakes are compared",
		},
		"e2e/...":    {"internal/mockapi": "the upstream of the client matrix"},
		"bench/...":  {"...": "measures the product from outside and inside"},
		"deploy/...": {"internal/testenv": "checks need the tools of the platform"},
	},
	tests: map[string]string{
		"internal/testenv": "says what a test needs from the machine",
		"internal/mockapi": "an upstream that misbehaves on request",
		"internal/netlab":  "a network that misbehaves on request",
	},
	libraries: map[string]library{
		"github.com/prometheus/client_golang": {[]string{"internal/metrics"}, "the metrics library is known in one place"},
		"go.opentelemetry.io/proto/slim/otlp": {[]string{"internal/otlp"}, "its tests decode with the schema's own code what the program encodes"},
		"github.com/spf13/cobra":              {[]string{"cmd/..."}, "commands live in cmd"},
		"go.yaml.in/yaml":                     {[]string{"internal/config"}, "the configuration file is read in one place"},
		"github.com/golang-jwt/jwt":           {[]string{"internal/tenant"}, "who calls is decided in one place; its tests and those of the wiring make tokens with it"},
	},
	silent: map[string]string{
		"dnscache/...":           "leaf: returns errors and keeps counters",
		"tlspool":                "leaf: returns errors and keeps counters",
		"tlspool/trust":          "leaf: returns errors",
		"tlspool/inspect":        "returns a report",
		"bufferctl":              "leaf: returns errors and keeps counters",
		"heartbeat":              "leaf: returns errors and keeps counters",
		"internal/intercept/...": "leaves: return errors",
		"internal/dialect":       "an observer is silent, never loud",
		"internal/tenant":        "gives its reasons to its caller",
		"internal/otlp":          "says what became of a message",
		"internal/config":        "loading returns errors that name file, line and key",
		"internal/measure":       "returns what it measured",
	},
	ambient: map[string]string{
		"internal/ingress/xconnect": "a setting of net/http that has no other way in",
		"tlspool/trust":             "SSL_CERT_FILE and SSL_CERT_DIR, which crypto/x509 reads itself, but once per process",
		"internal/testenv":          "asks whether this is CI",
		"internal/lab":              "gives child processes their environment",
		"e2e/...":                   "builds the program and gives child processes their environment",
	},
	inits: map[string]string{
		"internal/ingress/xconnect/xconnect.go": "net/http reads its environment when it is initialised",
		"internal/ingress/http2.go":             "gives the environment back before anything else can see it",
	},
	sleeps: map[string]string{},
}
