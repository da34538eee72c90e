// SPDX-License-Identifier: Apache-2.0

// Package tenant knows who calls, what they may do, and how much of it.
//
// A [Book] is one configuration: its tenants with their tokens, users, claims,
// roles and quotas. [Book.Identify] finds the tenant that a request's [Proof]
// belongs to, [Tenant.Permits] asks its roles, and [Tenant.Begin] takes a
// request's share of its quotas. [Keys] holds the keys that sign JSON Web
// Tokens, and fetches them anew in the background.
//
// What identifies: a token (kept as the SHA-256 of it, compared so that time
// tells nothing), the user or group at the other end of the connection, or a
// JWT (RS, PS, ES, EdDSA and HS; an algorithm is accepted only from a key that
// is made for it). A JWT is verified once and remembered, by the hash of all of
// it, until it expires or the keys change.
//
// Quotas are counted over the last minute in slots of a second, so that no 60 s
// hold more than the limit. What an answer costs is known only at its end: a
// tenant over its output tokens gets its running answers whole, and no new ones.
//
// What it refuses: it reads no request and writes no answer, looks nothing up
// over the network but by the function that [NewKeys] is given, never logs, and
// tells no reason to anybody but its caller. Algorithm none, tokens without an
// expiry, with critical extensions or of more than [MaxToken] bytes are never
// accepted, and keys named by a token itself (jku, jwk, x5u, x5c) never used.
//
// Nothing runs until [Keys.Run] is called; it ends with its context. All
// methods are safe for concurrent use. At most 4096 verified JWTs are
// remembered and 64 keys held.
package tenant
