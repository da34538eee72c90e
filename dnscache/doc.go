// SPDX-License-Identifier: Apache-2.0

// Package dnscache keeps names ready: it answers from a cache that is refreshed
// before it runs out, from several resolvers that are raced, and from the last
// good answer when none of them can be reached.
//
// [New] makes a [Resolver] of a [Config]; [Resolver.Lookup] answers. The hosts
// file comes first, localhost never leaves the machine, names of the own network
// go to the system's resolvers only. What is asked over the network is asked by
// package exchange, which this package only chooses from: it opens no socket of
// its own but for the stub ([Resolver.ListenStub]).
//
// It refuses to mix views: a resolver that says "no such name" has answered, and
// the next one is asked only if one fails or is late. It never asks itself, and
// never resolves a resolver's name through the resolver. It never logs: hooks
// tell of lookups and events. It does not check signatures (DNSSEC), and does not
// judge by itself whether an address is the right one; [Resolver.Report] and
// [Resolver.Distrust] take the word of those who used it.
//
// New reads the cache file and starts nothing. Until [Resolver.Run] runs, answers
// are refreshed only when asked for and resolvers that died are not probed.
// [Resolver.Close] ends what is under way, and waits. All methods are safe for
// concurrent use.
//
// Everything is bounded: names kept (Config.MaxEntries, the least used go first),
// lookups in flight (further ones fail at once), refreshes at once, resolvers
// asked for one lookup, and the file.
package dnscache
