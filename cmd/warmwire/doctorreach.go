// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/reach"
)

// Above these many seconds a clock is told of: signed requests are refused from five
// minutes on, and answers' times mislead before that.
const (
	skewTold  = 30
	skewWrong = 300
)

// reach says how t is reached, and what is in the way.
func (d *doctor) reach(ctx context.Context, t target, e *examined) []clientenv.Finding {
	addrs, err := d.names.Addrs(ctx, t.host)
	if err != nil || len(addrs) == 0 {
		return nil // the name is the fault, and told of
	}
	r := reach.Look(ctx, reach.Config{Host: t.host, Port: t.port, Addrs: addrs, TLS: t.tls})
	if isLocal(t.host) {
		r.Portal = "" // no network is in between
	}
	e.Reach = &r
	return reachFindings(t, r)
}

// reachFindings judges what was found.
func reachFindings(t target, r reach.Report) (found []clientenv.Finding) {
	add := func(level clientenv.Level, code, mend, format string, args ...any) {
		found = append(found, clientenv.Finding{Code: code, Level: level, Mend: mend, Text: t.host + ": " + fmt.Sprintf(format, args...)})
	}
	v4, v6 := r.IPv4 != nil && r.IPv4.Connected, r.IPv6 != nil && r.IPv6.Connected
	switch {
	case !v4 && !v6 && !t.tls: // with TLS the handshake tells of it
		add(clientenv.Error, "unreachable", "", "no address takes a connection on port %d: %s", t.port, failures(r))
	case r.IPv6 != nil && !v6 && v4:
		add(clientenv.Note, "ipv6_unreachable", "ip -6 route get 2001:4860:4860::8888", "its IPv6 addresses cannot be reached, IPv4 serves: %s", r.IPv6.Error)
	case r.IPv4 != nil && !v4 && v6:
		add(clientenv.Warning, "ipv4_unreachable", "ip -4 route get 8.8.8.8", "its IPv4 addresses cannot be reached, IPv6 serves: %s", r.IPv4.Error)
	}
	if t.h3 && (v4 || v6) && !r.QUIC {
		add(clientenv.Warning, "quic_silent", "", "UDP port %d gets no answer, and protocols has h3: let UDP 443 out, or leave h3 out", t.port)
	}
	if r.Portal != "" {
		add(clientenv.Error, "login_page", "xdg-open http://"+t.host+"/", "this network sends plain requests to %s: log in there first", r.Portal)
	}
	if r.Skew != nil && math.Abs(*r.Skew) > skewTold {
		level, way := clientenv.Warning, "ahead of"
		if math.Abs(*r.Skew) >= skewWrong {
			level = clientenv.Error
		}
		if *r.Skew < 0 {
			way = "behind"
		}
		add(level, "clock", "sudo timedatectl set-ntp true", "the clock of this machine is %.0f s %s the host's", math.Abs(*r.Skew), way)
	}
	return found
}

func failures(r reach.Report) string {
	var list []string
	for _, f := range []*reach.Family{r.IPv4, r.IPv6} {
		if f != nil && f.Error != "" {
			list = append(list, f.Error)
		}
	}
	return strings.Join(list, "; ")
}

// reachLine is the report in one line.
func reachLine(r *reach.Report) string {
	family := func(name string, f *reach.Family) string {
		switch {
		case f == nil:
			return name + " has no address"
		case f.Connected:
			return fmt.Sprintf("%s connects in %.1f ms", name, f.Took)
		}
		return name + " does not connect"
	}
	parts := []string{family("IPv4", r.IPv4), family("IPv6", r.IPv6)}
	if r.QUIC {
		parts = append(parts, "QUIC answers")
	} else {
		parts = append(parts, "QUIC does not answer")
	}
	if r.Skew != nil {
		parts = append(parts, fmt.Sprintf("clock %+.0f s", *r.Skew))
	}
	return strings.Join(parts, ", ")
}
