// SPDX-License-Identifier: Apache-2.0

// Package qos decides how many requests run at once at an upstream, and which of those
// that wait is next: a layer around an [http.RoundTripper].
//
// A [Gate] holds what is known of the upstream: a limit of concurrent requests, fixed or
// learned, what its answers said of its own limits, and the queue. A [Transport] is one
// way through it; several may share one gate, one after the other, so that a reload
// keeps what runs, waits and was learned. One slot is one running request, from before it
// is sent until its answer's body has ended or was closed, with all that layers below
// do in between. A WebSocket is a running request until it is closed.
//
// Order: a class goes before less urgent ones, but a class that waits is passed by at
// most [Share] of these. Inside a class tenants take turns by start-time fair queueing,
// weighted, where a turn costs what the tenant's requests usually last. Who bursts does
// not get the slots that others have lately had: a tenant that has more than its part
// starts a request only while as many slots stay free as the other tenants of its class,
// and those of more urgent ones, have had in use beyond what they use now. Parts are what
// each had at once, evenly less if that is more than half of the limit in all.
//
// It refuses, at once, what cannot start in time, and what the full queue has no place
// for: the newest request of the least urgent class, and there of the tenant that waits
// with most. An [*Error] says so. Who leaves the queue is out of it at once. It never
// looks into bodies, sends nothing by itself, and never changes a request or an answer.
//
// [NewGate] and [New] start nothing. A timer runs only while requests wait. All methods
// are safe for concurrent use; the functions of [Config] are called with no lock held.
package qos
