// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/warmwire/warmwire/tlspool/inspect"
)

// printTLS writes the report for people.
func printTLS(out io.Writer, upstream string, r *inspect.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) // tells of an error in Flush
	title := fmt.Sprintf("TLS of %s:%d", r.Host, r.Port)
	if upstream != "" {
		title += ", upstream " + upstream
	}
	if r.Address != "" {
		title += ", at " + r.Address
	}
	fmt.Fprintln(out, title)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if r.Failure != nil {
		line("failed", "%s", r.Failure.Text)
	} else {
		printChain(line, r)
		printAgreed(line, r)
		printHandshakes(line, r.Handshakes)
	}
	for _, n := range r.Notes {
		line("note", "%s", n)
	}
	return w.Flush()
}

func printChain(line func(string, string, ...any), r *inspect.Report) {
	c := r.Chain
	verdict := "do not verify"
	if c.Verified {
		verdict = "verify, root " + c.Root
	}
	line("certificates", "%s; %d sent, %d bytes", verdict, len(c.Certificates), c.Bytes)
	for _, p := range c.Problems {
		line("problem", "%s", p.Text)
	}
	for i, cert := range c.Certificates {
		line(fmt.Sprintf("  %d", i+1), "%s, by %s", cert.Subject, cert.Issuer)
		key := cert.Key
		if cert.Key == "RSA" {
			key = fmt.Sprintf("RSA %d", cert.KeyBits)
		}
		line("", "%s, signed with %s, valid from %s to %s", key, cert.Signature, cert.NotBefore.Format(time.DateOnly), cert.NotAfter.Format(time.DateOnly))
		if len(cert.Names) > 0 {
			names := cert.Names
			if more := len(names) - 10; more > 0 {
				names = append(slices.Clone(names[:10]), fmt.Sprintf("and %d more", more))
			}
			line("", "names %s", strings.Join(names, " "))
		}
		line("", "fingerprint %s", cert.SHA256)
		line("", "pin %s", cert.Pin)
	}
	for _, n := range c.Notes {
		line("note", "%s", n)
	}
	staple := r.Staple.Status
	if r.Staple.Text != "" {
		staple += ": " + r.Staple.Text
	}
	if !r.Staple.NextUpdate.IsZero() {
		staple += fmt.Sprintf(" (produced %s, next %s)", r.Staple.Produced.Format(time.RFC3339), r.Staple.NextUpdate.Format(time.RFC3339))
	}
	if c.MustStaple {
		staple += "; the certificate says must-staple"
	}
	line("OCSP staple", "%s", staple)
	line("SCTs", "%d in the certificate, %d in the handshake", c.SCTsInCert, c.SCTs)
}

func printAgreed(line func(string, string, ...any), r *inspect.Report) {
	a := r.Agreed
	retried := ""
	if a.Retried {
		retried = ", after a HelloRetryRequest: one round trip more"
	}
	line("agreed", "%s, %s, key exchange %s%s", a.Version, a.CipherSuite, a.Group, retried)
	for _, v := range r.Versions {
		switch {
		case v.Spoken:
			line(v.Name, "yes, %s", v.CipherSuite)
		default:
			line(v.Name, "no: %s", v.Failure.Text)
		}
	}
	for _, p := range r.ALPN {
		chosen := p.Chosen
		switch {
		case p.Failure != nil:
			chosen = p.Failure.Text
		case chosen == "":
			chosen = "none"
		}
		offered := strings.Join(p.Offered, ", ")
		if offered == "" {
			offered = "nothing"
		}
		line("ALPN", "%s offered: %s", offered, chosen)
	}
	if c := r.ClientCert; c != nil {
		text := "asked for; none is configured, and the server goes on without"
		switch {
		case c.Failure != nil:
			text = c.Failure.Text
		case c.Sent:
			text = "asked for and sent"
		}
		line("client certificate", "%s", text)
	}
	printTickets(line, r)
}

func printTickets(line func(string, string, ...any), r *inspect.Report) {
	t := r.Tickets
	text := fmt.Sprintf("%d of a full handshake", t.Count)
	switch {
	case t.Failure != nil:
		text = "none: " + t.Failure.Text
	case t.Count == 0:
		text = "none: nothing can be resumed"
	default:
		if t.Lifetime != nil {
			text += fmt.Sprintf(", good for %v", time.Duration(*t.Lifetime)*time.Second)
		}
		switch {
		case t.EarlyData == nil:
		case *t.EarlyData == 0:
			text += ", no early data"
		default:
			text += fmt.Sprintf(", early data up to %d bytes", *t.EarlyData)
		}
	}
	line("tickets", "%s", text)
}

func printHandshakes(line func(string, string, ...any), c *inspect.Comparison) {
	if c == nil {
		return
	}
	show := func(s inspect.Spread) string {
		return fmt.Sprintf("%.1f ms (%.1f to %.1f, %d times)", s.Median, s.Min, s.Max, s.N)
	}
	if c.Connect.N > 0 {
		line("TCP connect", "%s", show(c.Connect))
	}
	for _, row := range []struct {
		name string
		m    inspect.Measured
	}{{"full handshake", c.Full}, {"resumed", c.Resumed}, {"X25519 only, full", c.Classic}} {
		text := "none succeeded"
		if row.m.Took.N > 0 {
			text = show(row.m.Took)
			if row.name != "full handshake" && c.Full.Took.Median > 0 {
				text += fmt.Sprintf(", %.2f of a full one", row.m.Took.Median/c.Full.Took.Median)
			}
			text += fmt.Sprintf(", ClientHello %d bytes", row.m.Hello)
			if row.m.Group != "" {
				text += ", " + row.m.Group
			}
		}
		for _, kind := range slices.Sorted(maps.Keys(row.m.Failed)) {
			text += fmt.Sprintf("; %d failed: %s", row.m.Failed[kind], kind)
		}
		line(row.name, "%s", text)
	}
	if c.Tried > 0 {
		line("resumed share", "%.0f %% of %d", 100*c.Share, c.Tried)
	}
}
