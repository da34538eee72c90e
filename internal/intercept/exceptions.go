// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// How often clients must refuse our certificate, in what time, and for how long their
// host is then left alone. Guesses: one client that is started anew does not do it,
// and an hour later somebody may have made it trust us.
const (
	refusals     = 3
	refusalsSpan = 10 * time.Minute
	blindFor     = time.Hour
)

// A Reason is why a host is left alone.
type Reason string

// The reasons.
const (
	Untrusted         Reason = "untrusted"          // clients did not accept our certificate
	ClientCertificate Reason = "client_certificate" // it wants one of the client's own
)

// maxRemembered bounds the hosts and kinds of clients that are remembered. At the bound
// those whose time is over are forgotten, and then nothing new is learned.
const maxRemembered = 1000

// everyClient is the kind of client that stands for all of them.
const everyClient = 0

// Exceptions are the listed hosts that are left alone for a while, because clients of a
// kind did not accept our certificate, or because the host wants one of theirs. The zero value is empty and ready.
type Exceptions struct {
	mu      sync.Mutex // guards entries and what is in them
	entries map[subject]*exception
}

// A subject is a host, and the kind of client for which it is left alone.
type subject struct {
	host   string
	client uint64
}

type exception struct {
	refused [refusals]time.Time // the latest ones, the oldest first
	until   time.Time
	reason  Reason
}

// entryLocked returns that of a subject, nil if there is no room for another one.
func (x *Exceptions) entryLocked(of subject, now time.Time) *exception {
	e := x.entries[of]
	if e != nil {
		return e
	}
	if len(x.entries) >= maxRemembered {
		maps.DeleteFunc(x.entries, func(_ subject, e *exception) bool {
			return !now.Before(e.until) && now.Sub(e.refused[refusals-1]) > refusalsSpan
		})
		if len(x.entries) >= maxRemembered {
			return nil
		}
	}
	if x.entries == nil {
		x.entries = make(map[subject]*exception)
	}
	e = &exception{}
	x.entries[of] = e
	return e
}

// WantsCertificate notes that a host has ended TLS for want of a client's certificate:
// it is left alone from now on. learned is false if it was before.
func (x *Exceptions) WantsCertificate(host string, now time.Time) (until time.Time, learned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entryLocked(subject{host, everyClient}, now)
	if e == nil {
		return time.Time{}, false
	}
	learned = !now.Before(e.until)
	e.until, e.reason = now.Add(blindFor), ClientCertificate
	return e.until, learned
}

// Refused notes that a client of a kind did not accept the certificate of a host. If the
// host is left alone for such clients from now on, it returns until when.
func (x *Exceptions) Refused(host string, client uint64, now time.Time) (until time.Time, learned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entryLocked(subject{host, client}, now)
	if e == nil {
		return time.Time{}, false
	}
	copy(e.refused[:], e.refused[1:])
	e.refused[refusals-1] = now
	if now.Before(e.until) || e.refused[0].IsZero() || now.Sub(e.refused[0]) > refusalsSpan {
		return time.Time{}, false
	}
	e.until, e.reason = now.Add(blindFor), Untrusted
	return e.until, true
}

// Blind says whether a host is left alone for a kind of client; 0: for all of them.
func (x *Exceptions) Blind(host string, client uint64, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, of := range [...]subject{{host, everyClient}, {host, client}} {
		if e := x.entries[of]; e != nil && now.Before(e.until) {
			return true
		}
	}
	return false
}

// An Exception is one host that is left alone.
type Exception struct {
	Host   string
	Until  time.Time
	Reason Reason
	Client uint64 // the kind of client (Hello.Client) for which it is; 0 = for all
}

// List returns those in force, by name.
func (x *Exceptions) List(now time.Time) []Exception {
	x.mu.Lock()
	defer x.mu.Unlock()
	var list []Exception
	for of, e := range x.entries {
		if now.Before(e.until) {
			list = append(list, Exception{of.host, e.until, e.reason, of.client})
		}
	}
	slices.SortFunc(list, func(a, b Exception) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Client, b.Client)) })
	return list
}

// Clear forgets what was learned of a host, "" = of all, and returns how many hosts were
// left alone.
func (x *Exceptions) Clear(host string, now time.Time) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	hosts := make(map[string]bool)
	for of, e := range x.entries {
		if host != "" && of.host != host {
			continue
		}
		if now.Before(e.until) {
			hosts[of.host] = true
		}
		delete(x.entries, of)
	}
	return len(hosts)
}
