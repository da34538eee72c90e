// SPDX-License-Identifier: Apache-2.0

// Package admin is the handler of the admin listener: health, readiness, metrics,
// status, reload and quit.
//
//	GET  /            what there is, as text
//	GET  /healthz     200 while the process answers
//	GET  /readyz      200 when requests are taken, else 503 and the reason
//	GET  /metrics     the metrics page
//	GET  /v1/status   JSON
//	GET  /v1/streams  JSON: what runs, and how far behind its app is
//	GET  /v1/config   the configuration in force, secrets masked
//	PATCH /v1/config  JSON Merge Patch of it (RFC 7396)
//	POST /v1/reload   read the configuration again
//	POST /v1/tune     ?KEY=VALUE: change settings until the next start; &save=true: in the file too
//	POST /v1/quit     drain and exit; for a Kubernetes Job whose sidecar is an
//	                  ordinary container, which would otherwise never complete
//
// Loopback is not trust. Every request must name the listener in its Host, except
// on a Unix socket, and must not come from another web page (see webguard). What
// changes state needs the bearer token, or a peer that Config.TrustPeer vouches
// for, and a body of type application/json; with the token, no body will do. A patch of
// the configuration may be of type application/merge-patch+json too, 256 KiB at most. Reached
// from beyond loopback, everything but the two probes needs the token. Errors are
// JSON with a stable code.
//
// Ready means that the listeners are bound and nothing is being drained. Whether
// the Internet can be reached is no part of it: an app that could do without
// would be kept from starting.
//
// The package binds nothing, starts nothing and logs nothing. An [Admin] is safe
// for concurrent use.
package admin
