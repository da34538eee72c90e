// SPDX-License-Identifier: Apache-2.0

package config

import "strings"

// A kind is the type of a key's value.
type kind string

const (
	kText     kind = "string"
	kBool     kind = "boolean"
	kInt      kind = "integer"
	kNumber   kind = "number"
	kDuration kind = "duration"
	kSize     kind = "size"
	kBound    kind = "size or auto"
	kList     kind = "list of strings"
	kInts     kind = "list of integers"
	kMap      kind = "map of strings"
	kShares   kind = "map of numbers"
	kRules    kind = "list of rules"

	kEndpoints kind = "list of endpoints"
	kWeights   kind = "map of weights"
)

// A key is one setting. This table is the only list of them: loading, the
// schema, the default file and the documentation are made from it.
type key struct {
	path    string // dotted; an upstream's settings are relative to it
	kind    kind
	def     string // as written in the file
	options []string
	doc     string
	secret  bool // shown as ****
	zero    bool // a number may be 0
}

// topKeys are the settings outside upstreams.
var topKeys = []key{
	{path: "listen.address", kind: kText, def: "127.0.0.1:8484", doc: "Where apps reach Warmwire: host:port or unix:/path. Outside loopback only with tenants or listen.token."},
	{path: "listen.addresses", kind: kList, def: "[]", doc: "Several addresses, instead of listen.address."},
	{path: "listen.token", kind: kText, secret: true, doc: "What apps must present, as Warmwire-Token or Proxy-Authorization, where their user is not trusted by the socket table."},
	{path: "listen.allow_hosts", kind: kList, def: "[]", doc: "Further host names by which apps reach this listener. Loopback names and the listener's own address always work."},
	{path: "listen.allow_origins", kind: kList, def: "[]", doc: "Web origins (scheme://host[:port]) whose pages may call this listener. All others are refused."},
	{path: "listen.allow_uids", kind: kInts, def: "[]", doc: "User ids, besides the one that runs Warmwire, that may use upstreams with injected headers."},
	{path: "listen.via", kind: kBool, def: "true", doc: "Add a Via field to requests (RFC 9110 §7.6.3)."},
	{path: "listen.server_timing", kind: kBool, def: "false", doc: "Add to answers where their time went (Server-Timing): the stages before the head, and in a trailer, for apps that say TE: trailers, the rest. See docs/latency.md."},
	{path: "admin.address", kind: kText, def: "127.0.0.1:8485", doc: "Health, metrics and status: host:port, unix:/path, or none."},
	{path: "admin.token_file", kind: kText, def: "auto", doc: "File with the token for state-changing admin calls, made at the first start. auto is admin.token in state_dir; none refuses such calls."},
	{path: "forward.default", kind: kText, def: "tunnel", options: []string{"tunnel", "deny"}, doc: "What happens to hosts that are no upstream: tunnel forwards them, deny refuses them."},
	{path: "forward.deny", kind: kList, def: "[]", doc: "Hosts never forwarded: names, .suffix, addresses, prefixes such as 10.0.0.0/8."},
	{path: "forward.idle_timeout", kind: kDuration, def: "0s", doc: "A CONNECT tunnel in which nothing has moved for so long, either way, is reset; 1s or more. 0s = never: a peer that is gone is found by TCP's own probes, and one that is silent may have its reasons."},
	{path: "jwt.issuer", kind: kText, doc: "The iss that JWTs must have. Needed with any of the keys below."},
	{path: "jwt.audience", kind: kList, def: "[]", doc: "The aud that JWTs must have, one of these. Empty = it is not looked at."},
	{path: "jwt.secret", kind: kText, secret: true, doc: "The key of HS256, HS384 and HS512, 32 bytes at least: \"${JWT_SECRET}\"."},
	{path: "jwt.keys_file", kind: kText, doc: "File of public keys, PEM or a JWK set (RS, PS, ES, EdDSA; secrets too in a set). Read again at each jwt.refresh."},
	{path: "jwt.keys_url", kind: kText, doc: "URL of the issuer's JWK set. Fetched in the background, sooner if a token names a key that is not known, but not more often than twice a minute; the last good keys stay while it cannot be reached."},
	{path: "jwt.ca_file", kind: kText, doc: "PEM file of further CAs for jwt.keys_url."},
	{path: "jwt.skew", kind: kDuration, def: "30s", doc: "How much the issuer's clock may differ, 10m at most."},
	{path: "jwt.refresh", kind: kDuration, def: "15m", doc: "How often jwt.keys_file and jwt.keys_url are read, 1m to 24h."},
	{path: "intercept.hosts", kind: kList, def: "[]", doc: "Hosts whose TLS Warmwire ends itself in a CONNECT tunnel, so that apps which only know a proxy get all that base-URL apps get: names or addresses, each once and without a port, or upstreams for those of all https upstreams of this file. Apps must trust warmwire ca path. All other hosts are tunnelled untouched."},
	{path: "intercept.blind", kind: kList, def: "[]", doc: "Hosts that are tunnelled untouched though intercept.hosts names them: those that want the app's own client certificate, or whose apps accept one certificate only."},
	{path: "parent_proxy", kind: kText, secret: true, doc: "HTTP proxy through which upstreams are reached, http://user:pass@host:port, or env for the environment's."},
	{path: "no_proxy", kind: kList, def: "[]", doc: "Hosts reached without parent_proxy: names, .suffix, addresses, prefixes."},
	{path: "dns.mode", kind: kText, def: "auto", options: []string{"auto", "system_first", "resolvers_first", "resolvers_only"}, doc: "Who is asked first. auto: dns.resolvers, then the system's; with none listed the system's, and built-in encrypted ones for upstreams of this file when the system's fail or are late."},
	{path: "dns.resolvers", kind: kList, def: "[]", doc: "https://host/dns-query, tls://host, udp://host, tcp://host, system, or one of cloudflare, google, quad9, alidns, dnspod. #name= and #addr= behind a URL give its certificate's name and its address."},
	{path: "dns.bootstrap", kind: kList, def: "[]", doc: "Addresses of resolvers that are asked for the names of dns.resolvers. Default: the system's."},
	{path: "dns.ca_file", kind: kText, doc: "PEM file with CAs for encrypted resolvers, besides the system's."},
	{path: "dns.stale", kind: kDuration, def: "24h", doc: "How long an answer whose time has run out still serves while no resolver answers. 0s = not at all."},
	{path: "dns.min_ttl", kind: kDuration, def: "0s", doc: "Answers are kept at least so long, 24h at most."},
	{path: "dns.cache_file", kind: kText, def: "auto", doc: "Keeps answers across restarts. auto is dns.cache in state_dir; none keeps them in memory only."},
	{path: "dns.system_domains", kind: kList, def: "[]", doc: "Domains that only the system's resolvers are asked for, such as corp.example."},
	{path: "dns.hosts_file", kind: kText, def: "/etc/hosts", doc: "Goes before all resolvers; changes are seen within 5 s."},
	{path: "dns.listen", kind: kText, doc: "Also answer DNS, over UDP and TCP, on this address of loopback, such as 127.0.0.1:5353, so that the app's own lookups use the same cache."},
	{path: "tls.session_file", kind: kText, def: "auto", doc: "Keeps TLS sessions across restarts, encrypted. auto is tls.sessions in state_dir; none keeps them in memory only. Read at start only."},
	{path: "tls.session_key", kind: kText, secret: true, doc: "What tls.session_file is encrypted with: 32 bytes in base64, such as \"${WARMWIRE_SESSION_KEY}\". Default: a key made beside the file, for its owner only."},
	{path: "state_dir", kind: kText, doc: "Folder for what is kept between runs. Default: systemd's $STATE_DIRECTORY, /var/lib/warmwire for root, else $XDG_STATE_HOME/warmwire."},
	{path: "spool_dir", kind: kText, def: "auto", doc: "Folder for what buffer.policy spool and reattach put on disk, encrypted with keys that are only in memory. auto is spool in state_dir."},
	{path: "limits.memory", kind: kBound, def: "auto", doc: "Bytes for buffers of all streams together: a size, or auto, which is 256MiB, or a quarter of the container's limit if that is less. At the limit new requests wait, by priority, and get 503 in the end; those that run go on with less. The Go runtime's limit (GOMEMLIMIT) is set from it unless it is set already."},
	{path: "limits.connections", kind: kInt, def: "10000", doc: "App connections at once; above it they get 503. No more than half of the file descriptors less 64: each may need one to its upstream."},
	{path: "limits.header", kind: kSize, def: "64KiB", doc: "Bytes of a request head, 4KiB to 1MiB; above it 431."},
	{path: "limits.body", kind: kSize, def: "0", doc: "Bytes of a request body; above it 413. 0 = no limit: bodies stream."},
	{path: "limits.procs", kind: kInt, def: "2", doc: "Cores to use at most."},
	{path: "log.level", kind: kText, def: "info", options: []string{"debug", "info", "warn", "error"}, doc: "What is logged."},
	{path: "log.format", kind: kText, def: "text", options: []string{"text", "json"}, doc: "How it is written."},
	{path: "log.access.sample", kind: kNumber, def: "0.01", doc: "Share of requests that the access log has in full, 0 to 1: those of the same traces in all services. Failures and cuts are added, at up to 10 a second for each upstream and outcome."},
	{path: "log.access.statuses", kind: kShares, def: "{}", options: []string{"1xx", "2xx", "3xx", "4xx", "5xx"}, doc: "Shares by class of status instead, such as {4xx: 0.1}. A class that is not named has log.access.sample, and 4xx and 5xx count as failures."},
	{path: "log.access.summary", kind: kDuration, def: "1m", doc: "How often the access log sums up all requests, those in full among them: a line for each upstream and outcome. 0s = never."},
	{path: "log.access.format", kind: kText, def: "auto", options: []string{"auto", "text", "json", "msgpack"}, doc: "How the access log is written. auto is log.format; msgpack needs log.access.file."},
	{path: "log.access.file", kind: kText, doc: "Where the access log goes: a file, opened again at each reload, or a named pipe that has a reader. Default: to standard error, with the log; then log.level applies."},
	{path: "telemetry.otlp.endpoint", kind: kText, doc: "OpenTelemetry collector that gets traces and metrics over OTLP/HTTP, such as http://localhost:4318; /v1/traces and /v1/metrics are put behind it. env takes OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS. Default: nothing is exported. See docs/telemetry.md."},
	{path: "telemetry.otlp.protocol", kind: kText, def: "http/protobuf", options: []string{"http/protobuf", "http/json"}, doc: "How messages are encoded."},
	{path: "telemetry.otlp.headers", kind: kMap, def: "{}", secret: true, doc: "Fields sent to the collector, such as Authorization: \"Bearer ${COLLECTOR_TOKEN}\"."},
	{path: "telemetry.otlp.traces", kind: kBool, def: "true", doc: "Export a span for each request of a trace that its app records (traceparent with the sampled flag); the upstream is then told that span as its parent."},
	{path: "telemetry.otlp.metrics", kind: kBool, def: "true", doc: "Export the client metrics of the GenAI semantic conventions."},
	{path: "telemetry.otlp.sample", kind: kNumber, def: "0.01", doc: "Share of the requests without a traceparent that get a trace of their own, 0 to 1. Their upstream is told nothing of it."},
	{path: "telemetry.otlp.interval", kind: kDuration, def: "1m", doc: "How often metrics are exported, 1s to 1h."},
	{path: "telemetry.otlp.timeout", kind: kDuration, def: "10s", doc: "Limit of one attempt to reach the collector, 100ms to 1m."},
	{path: "telemetry.otlp.ca_file", kind: kText, doc: "PEM file of further CAs for the collector."},
	{path: "telemetry.otlp.resource", kind: kMap, def: "{}", doc: "Resource attributes, such as {service.name: gateway, deployment.environment.name: prod}. service.name is warmwire by default."},
	{path: "drain.wait", kind: kDuration, def: "0s", doc: "Go on serving this long after SIGTERM, or until idle: for sidecars that must outlive their app."},
	{path: "drain.timeout", kind: kDuration, def: "25s", doc: "Then streams may finish this long; what is left is cut visibly."},
	{path: "drain.upgrade_timeout", kind: kDuration, def: "1h", doc: "After warmwire upgrade, streams of the old process may finish this long. 0s = until all have ended."},
}

// ownOnly are settings that cannot stand under defaults: one provider's key must
// not go to all others.
var ownOnly = []string{"url", "disabled", "endpoints", "headers.set", "routing.weights", "routing.drain"}

// upstreamKeys are the settings of one upstream; all but ownOnly may also stand
// under defaults.
var upstreamKeys = []key{
	{path: "url", kind: kText, doc: "Base URL of the API; its path is put before base-URL targets. Needed unless the name is a built-in one."},
	{path: "disabled", kind: kBool, def: "false", doc: "Drop a built-in upstream."},
	{path: "endpoints", kind: kEndpoints, def: "[]", doc: "Several servers of the same API, such as [{url: https://a.example.com, weight: 2}, {url: https://b.example.com, name: b}]: each attempt goes to one of them, with its host as Host; the path is that of url, which then gets nothing itself and may be left out. See docs/routing.md."},
	{path: "routing.algorithm", kind: kText, def: "latency", options: []string{"latency", "least_request", "round_robin"}, doc: "How an endpoint is chosen. latency: of two drawn by weight the one that is expected to give its first byte sooner; least_request: the one with fewer requests for its weight; round_robin: in turn, by weight."},
	{path: "routing.weights", kind: kWeights, def: "{}", doc: "Weights by an endpoint's name (its host and port if it has none), instead of those of endpoints."},
	{path: "routing.drain", kind: kList, def: "[]", doc: "Endpoints, by name, that get nothing new; what they have goes on to its end."},
	{path: "routing.affinity", kind: kText, doc: "A field of requests, such as X-Session-Id: requests with the same value go to the same endpoint, where their prompt is cached, while it has room (routing.affinity_bound). Without the field they go as routing.algorithm says."},
	{path: "routing.affinity_bound", kind: kNumber, def: "1.25", doc: "An endpoint has at most this times its fair share of the requests that run; what goes beyond moves to the next one for that value."},
	{path: "routing.slow_start", kind: kDuration, def: "30s", doc: "An endpoint that is new, or back, gets its full weight after this long. 0s = at once."},
	{path: "routing.eject_after", kind: kInt, def: "5", zero: true, doc: "So many failures in a row leave an endpoint out: no connection, 500, 502, 503, 504, 529, broken answers, limits that passed. One more when it is back. 0 = never."},
	{path: "routing.eject_time", kind: kDuration, def: "10s", doc: "For how long at first; each further time it is twice as long."},
	{path: "routing.eject_max_time", kind: kDuration, def: "5m", doc: "And at most."},
	{path: "routing.eject_share", kind: kNumber, def: "0.5", doc: "The share of an upstream's endpoints that may be left out at once, rounded down."},
	{path: "routing.eject_slow", kind: kNumber, def: "0", doc: "First bytes that take longer than this times what those of the other endpoints take (their median), and 100ms longer, count as failures too. 0 = they do not."},
	{path: "routing.load_path", kind: kText, doc: "Where endpoints show their load as Prometheus text, such as /metrics of vLLM: requests waiting (vllm:num_requests_waiting) and cache use (vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc), smoothed over 5s. Read in the background, never while a request waits. Default: nowhere."},
	{path: "routing.load_interval", kind: kDuration, def: "1s", doc: "How often."},
	{path: "routing.probe_path", kind: kText, doc: "What each endpoint is asked for now and then, such as /health: two answers in a row that are none of 2xx leave it out until one is. Default: nothing."},
	{path: "routing.probe_interval", kind: kDuration, def: "10s", doc: "How often."},
	{path: "dialect", kind: kText, def: "auto", options: []string{"auto", "openai", "anthropic", "gemini", "none"}, doc: "How its streams are read and our errors are shaped."},
	{path: "protocols", kind: kList, def: "[h2, http/1.1]", options: []string{"h2", "http/1.1", "h3"}, doc: "Allowed protocols. h3 is used where the API offers it (Alt-Svc, HTTPS records): it gets a head start of 100 ms before TCP, and is left alone for minutes where UDP does not pass; it needs one of the others beside it."},
	{path: "headers.set", kind: kMap, def: "{}", secret: true, doc: "Fields set on each request, such as Authorization: \"Bearer ${OPENAI_API_KEY}\". The port then serves only this user, listen.allow_uids or listen.token."},
	{path: "timeouts.connect", kind: kDuration, def: "5s", doc: "Lookup and all addresses together."},
	{path: "timeouts.tls_handshake", kind: kDuration, def: "5s", doc: "TLS handshake."},
	{path: "timeouts.request_write", kind: kDuration, def: "30s", doc: "Upload of which the upstream takes no byte."},
	{path: "timeouts.response_header", kind: kDuration, def: "30m", doc: "Sent request to the head of the answer."},
	{path: "timeouts.first_token", kind: kDuration, def: "0s", doc: "Request to the first token of a stream."},
	{path: "timeouts.idle", kind: kDuration, def: "15m", doc: "Silence inside an answer."},
	{path: "timeouts.total", kind: kDuration, def: "0s", doc: "Request to the end of the answer. Cuts healthy streams: leave it at none unless you mean that."},
	{path: "priority", kind: kText, def: "default", options: classNames, doc: "How urgent its requests are: the order of uploads on a connection and of those that wait for one, and what the API is told (RFC 9218). A request may say otherwise (Warmwire-Priority), its tenant or classes; see docs/priorities.md."},
	{path: "classes", kind: kRules, def: "[]", options: classNames, doc: "Classes by path, such as [{path: /v1/batches*, class: batch}]: the first that fits counts. A * at a path's end stands for anything."},
	{path: "pool.warm", kind: kInt, def: "1", zero: true, doc: "Connections kept ready: always for an upstream of this file, for an hour after the last request for a built-in one. 0 = none."},
	{path: "pool.max_connections", kind: kInt, def: "8", doc: "HTTP/2 connections at once."},
	{path: "pool.max_h1_connections", kind: kInt, def: "1000", doc: "HTTP/1.1 connections at once, WebSockets among them."},
	{path: "pool.max_streams", kind: kInt, def: "100", doc: "Requests at once on one HTTP/2 connection; less if the API allows less."},
	{path: "pool.idle_timeout", kind: kDuration, def: "0s", doc: "A connection that serves nothing and is not kept ready ends after this long. 0s = 90s, or less if the API closes them sooner, as learned, also over a restart."},
	{path: "pool.queue_timeout", kind: kDuration, def: "10s", doc: "How long a request waits when all connections are full; then 503."},
	{path: "limits.concurrency", kind: kInt, def: "0", zero: true, doc: "Requests at once, WebSockets among them, each until its answer has ended; the others wait, by class and fairly between tenants. With limits.adaptive the most of them. 0 = no limit."},
	{path: "limits.adaptive", kind: kBool, def: "false", doc: "Learn how many requests at once the API bears, between limits.floor and limits.concurrency (1000 if that is 0), from its refusals (429, 503, 529) and from answers that begin later than usual."},
	{path: "limits.floor", kind: kInt, def: "4", doc: "What limits.adaptive learns is never less."},
	{path: "limits.pace", kind: kBool, def: "false", doc: "Wait here instead of running into 429: keep to what the API's answers say is left (x-ratelimit-*, anthropic-ratelimit-*), and send nothing before Retry-After is over, a minute at most. For APIs whose limits are the same for all models and keys that are used through this upstream."},
	{path: "limits.queue", kind: kInt, def: "1000", doc: "Requests that wait because of limits; then 503, or 429 for a tenant that has more than its part of the queue."},
	{path: "limits.queue_timeout", kind: kDuration, def: "10s", doc: "How long a request waits because of limits; then 503."},
	{path: "buffer.stream_limit", kind: kSize, def: "1MiB", doc: "Bytes that one answer may hold for an app that is slower than its upstream, 16KiB at least. It begins with 64KiB and grows while the app keeps up and limits.memory has room."},
	{path: "buffer.policy", kind: kText, def: "pause", options: []string{"pause", "spool"}, doc: "What happens to an upstream whose app is slower: pause lets it wait; spool takes its answer into memory and then an encrypted file, so that it is done early."},
	{path: "buffer.spool_limit", kind: kSize, def: "64MiB", doc: "Bytes of one answer that policy spool takes beyond what the app has read; then the upstream waits. The first stream_limit of them are kept in memory."},
	{path: "buffer.stall_timeout", kind: kDuration, def: "5m", doc: "An app that takes no byte of its answer for this long is cut. 0s = never."},
	{path: "reattach.wait", kind: kDuration, def: "0s", doc: "An app may name a stream (Warmwire-Stream: NAME), and if its connection breaks come back to it within this time and go on where it was (Warmwire-Position: BYTES). 0s = it may not."},
	{path: "reattach.limit", kind: kSize, def: "16MiB", doc: "Bytes of such a stream that are kept, half of them for what the app has lost, half for what it has not read; then the upstream waits. The first buffer.stream_limit of them are kept in memory."},
	{path: "heartbeat.mode", kind: kText, def: "adaptive", options: []string{"adaptive", "fixed", "off"}, doc: "How silent connections are watched: adaptive probes as seldom as the path allows, as learned, and judges by measured round trips; fixed probes every max_interval (20s if that is 0s); off probes nothing, and the ends of a WebSocket ping each other."},
	{path: "heartbeat.min_interval", kind: kDuration, def: "5s", doc: "The shortest time between probes of one connection, and the silence of an open answer after which it is looked into; 5m at most."},
	{path: "heartbeat.max_interval", kind: kDuration, def: "0s", doc: "The longest time between probes. 0s = half of what the path was seen to bear, 5m at most; of a silent answer 1m."},
	{path: "heartbeat.timeout", kind: kDuration, def: "0s", doc: "How long a probe's answer may take before the peer is doubted. 0s = from the measured round trips; of a silent answer 1s. A peer is left only if a fresh connection is answered and it is not."},
	{path: "heartbeat.sse_comments", kind: kDuration, def: "0s", doc: "Send the app a comment (a line with a colon) this often while an event stream of its dialect is silent, between events, for apps and networks that cut silent answers. Not into streams that are spooled or may be come back to. 0s = none: the bytes are the upstream's alone."},
	{path: "heartbeat.search", kind: kBool, def: "true", doc: "While a WebSocket is open, find out how long the path bears silence by one further connection over HTTP/2 that serves nobody, so that probes become rarer. It is opened again after a limit was found; a path that cannot be tried that way stays at half a minute."},
	{path: "reconnect", kind: kBool, def: "false", doc: "Make a WebSocket's handshake again if it fails, for up to a minute, with random pauses that double to 8s: after broken connections and after 429, 502, 503, 504 and 529. The app waits for its 101 meanwhile. A WebSocket that is open is never moved."},
	{path: "websocket_http2", kind: kBool, def: "true", doc: "Open a WebSocket as a stream of an HTTP/2 connection that is there (RFC 8441), where the API offers that: no handshakes of TCP and TLS. Never beside a large upload."},
	{path: "resume", kind: kBool, def: "false", doc: "Continue a stream of the Responses API that breaks, where the app asked for background and store: the server keeps such answers, and the app gets each event once. Its events reach the app whole, not in parts."},
	{path: "retry.max_attempts", kind: kInt, def: "3", doc: "Attempts of one request in all, 10 at most. 1 = never again. Only what was provably not processed is sent again, unless statuses, resets or hedge say more."},
	{path: "retry.budget", kind: kNumber, def: "0.2", doc: "Further attempts as a share of the requests of the last ten seconds, 0 to 1, but always 4 in ten seconds. What the app itself tries again (x-stainless-retry-count) counts too. 0 = none."},
	{path: "retry.statuses", kind: kInts, def: "[]", doc: "Answers after which a request is sent again, such as [429, 503, 529]. The upstream may have done the work, and may charge for it twice. Retry-After and its kin are obeyed; if they ask for more than max_delay, the app gets the answer."},
	{path: "retry.resets", kind: kBool, def: "false", doc: "Also send again when the connection breaks after the request and before a byte of its answer. That proves nothing: the upstream may have done the work."},
	{path: "retry.base_delay", kind: kDuration, def: "100ms", doc: "The first pause is up to this long, by chance, and the widest doubles each time; never shorter than the upstream asks for."},
	{path: "retry.max_delay", kind: kDuration, def: "5s", doc: "The longest pause."},
	{path: "retry.replay_body", kind: kSize, def: "1MiB", doc: "Bytes of a request's body that are kept until the answer's head is there; a longer one is sent once. 0 = none."},
	{path: "retry.hedge", kind: kBool, def: "false", doc: "Send a request a second time if its answer's head takes longer than that of 95 % of the requests before; the first head counts, the other is cancelled. Costs what the upstream charges for both."},
	{path: "retry.hedge_budget", kind: kNumber, def: "0.05", doc: "Such second requests as a share of all, up to 1."},
	{path: "qlog_dir", kind: kText, doc: "Folder for traces (qlog) of connections over QUIC that stalled or broke, or on which an answer was cut: the last packets and frames, no header fields, no bodies."},
	{path: "congestion_control", kind: kText, doc: "TCP congestion control of connections to it, such as bbr, where the kernel has it. Default: the system's. Linux only."},
	{path: "error_event", kind: kBool, def: "false", doc: "Give a cut stream an error event of its dialect before it is cut."},
	{path: "tls.ca_file", kind: kText, doc: "PEM file of further CAs, added to the system's."},
	{path: "tls.ca_only", kind: kBool, def: "false", doc: "Trust the CAs of tls.ca_file alone, not the system's."},
	{path: "tls.intermediates_file", kind: kText, doc: "PEM file of intermediate certificates that the server forgets to send. They are not trusted by themselves."},
	{path: "tls.pins", kind: kList, def: "[]", doc: "Public keys of which one must be in the certificate chain, as sha256/BASE64 of the SubjectPublicKeyInfo (RFC 7469 §2.4). warmwire doctor prints them."},
	{path: "tls.pins_report_only", kind: kBool, def: "false", doc: "Count chains without such a key, and let them pass."},
	{path: "tls.ech", kind: kText, def: "off", options: []string{"off", "auto"}, doc: "Encrypted ClientHello where the API's HTTPS record offers it; if the server refuses, once more as it says or without. auto needs a resolver that answers HTTPS records. Over TCP only."},
	{path: "tls.client_cert", kind: kText, doc: "PEM file of our certificate."},
	{path: "tls.client_key", kind: kText, doc: "PEM file of its key."},
	{path: "tls.min_version", kind: kText, def: "1.2", options: []string{"1.2", "1.3"}, doc: "Oldest TLS version."},
}

// builtins are the APIs known without a file, each with the provider's base URL
// less the version segment that apps put into their own base URL.
var builtins = []struct{ name, url string }{
	{"anthropic", "https://api.anthropic.com"},
	{"dashscope", "https://dashscope.aliyuncs.com/compatible-mode"},
	{"deepseek", "https://api.deepseek.com"},
	{"gemini", "https://generativelanguage.googleapis.com"},
	{"groq", "https://api.groq.com/openai"},
	{"mistral", "https://api.mistral.ai"},
	{"moonshot", "https://api.moonshot.ai"},
	{"ollama", "http://127.0.0.1:11434"},
	{"openai", "https://api.openai.com"},
	{"openrouter", "https://openrouter.ai/api"},
	{"xai", "https://api.x.ai"},
	{"zhipu", "https://open.bigmodel.cn/api/paas"},
}

// find returns the key with a dotted path, and whether the path is a section.
func find(keys []key, path string) (k *key, section bool) {
	for i := range keys {
		if keys[i].path == path {
			return &keys[i], false
		}
		section = section || strings.HasPrefix(keys[i].path, path+".")
	}
	return nil, section
}

// nearest is the known path most like one that is unknown, "" if none is close.
func nearest(keys []key, section, name string) string {
	best, bestDistance := "", 3
	for _, k := range keys {
		rest := k.path
		if section != "" {
			var ok bool
			if rest, ok = strings.CutPrefix(k.path, section+"."); !ok {
				continue
			}
		}
		first, _, _ := strings.Cut(rest, ".")
		if len(name) > len(first)+bestDistance { // so far already, whatever its letters
			continue
		}
		if d := distance(name, first); d < bestDistance {
			best, bestDistance = first, d
		}
	}
	return best
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		last := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := last
			if a[i-1] != b[j-1] {
				cost++
			}
			last = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
