// SPDX-License-Identifier: Apache-2.0

// Package route picks an endpoint of an upstream for each attempt of a request: a layer
// around an [http.RoundTripper] that reaches every one of them.
//
// Endpoints are origins (scheme, host, port) that serve the same API. The layer puts the
// chosen one into the request's URL and Host and changes nothing else of it. How one is
// chosen says [Config.Algorithm]: smooth weighted round-robin, the less loaded of two
// drawn by weight, or of these two the one that is expected to give its first byte
// sooner. With [Config.Affinity] requests that have the same value in a field go to the
// same endpoint while it has room.
//
// What it learns of an endpoint: the time to the first byte of its answers, apart for
// event streams and other answers and for each version of HTTP; how many requests it
// has; its failures; and what it says of its own load ([Config.LoadPath]). An endpoint
// that fails again and again is left out for a time that grows, as long as not too many
// are ([Ejection.Share]). All of that is kept over [Transport.Update].
//
// It refuses to send anything twice. An attempt after another of the same call prefers
// endpoints that were not tried; whether there is one decides the layer above. For this
// the calls must pass [Calls], above that layer. Of an error that came before the request
// was sent, while another endpoint is untried, it says so with a method Elsewhere. What
// continues an answer that is being read, in the same call, goes to the endpoint that
// gave it.
//
// It never waits for an endpoint's word about itself: pages are read in the background,
// by [Transport.Run], bounded in bytes and time, and what is old counts for nothing.
//
// The choice is one pass over the endpoints under a mutex, without allocation. There may
// be [MaxEndpoints]. Nothing runs but Run. All methods are safe for concurrent use.
package route
