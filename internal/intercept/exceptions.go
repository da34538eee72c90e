// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"cmp"
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

// maxHosts bounds what is remembered; more hosts cannot be listed.
const maxHosts = 1000

// Exceptions are the listed hosts that are left alone for a while, because clients did
// not accept our certificate, or the host wants one of theirs. The zero value is empty and ready.
type Exceptions struct {
	mu    sync.Mutex // guards hosts and what is in it
	hosts map[string]*exception
}

type exception struct {
	refused [refusals]time.Time // the latest ones, the oldest first
	until   time.Time
	reason  Reason
}

// entryLocked returns that of a host, nil if there is no room for another one.
func (x *Exceptions) entryLocked(host string) *exception {
	e := x.hosts[host]
	if e == nil && len(x.hosts) < maxHosts {
		if x.hosts == nil {
			x.hosts = make(map[string]*exception)
		}
		e = &exception{}
		x.hosts[host] = e
	}
	return e
}

// WantsCertificate notes that a host has ended TLS for want of a client's certificate:
// it is left alone from now on. learned is false if it was before.
func (x *Exceptions) WantsCertificate(host string, now time.Time) (until time.Time, learned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entryLocked(host)
	if e == nil {
		return time.Time{}, false
	}
	learned = !now.Before(e.until)
	e.until, e.reason = now.Add(blindFor), ClientCertificate
	return e.until, learned
}

// Refused notes that a client did not accept the certificate of a host. If the host is
// left alone from now on, it returns until when.
func (x *Exceptions) Refused(host string, now time.Time) (until time.Time, learned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entryLocked(host)
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

// Blind says whether a host is left alone.
func (x *Exceptions) Blind(host string, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.hosts[host]
	return e != nil && now.Before(e.until)
}

// An Exception is one host that is left alone.
type Exception struct {
	Host   string
	Until  time.Time
	Reason Reason
}

// List returns those in force, by name.
func (x *Exceptions) List(now time.Time) []Exception {
	x.mu.Lock()
	defer x.mu.Unlock()
	var list []Exception
	for host, e := range x.hosts {
		if now.Before(e.until) {
			list = append(list, Exception{host, e.until, e.reason})
		}
	}
	slices.SortFunc(list, func(a, b Exception) int { return cmp.Compare(a.Host, b.Host) })
	return list
}

// Clear forgets what was learned of a host, "" = of all, and returns how many were
// left alone.
func (x *Exceptions) Clear(host string, now time.Time) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for name, e := range x.hosts {
		if host != "" && name != host {
			continue
		}
		if now.Before(e.until) {
			n++
		}
		delete(x.hosts, name)
	}
	return n
}
