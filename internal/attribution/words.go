// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"time"
)

// Text says in one sentence, for people who know nothing of the product, what the answer
// suffers from.
func (f Finding) Text() string {
	switch f.Fault {
	case FaultProvider:
		return f.providerText()
	case FaultNetwork:
		return f.networkText()
	case FaultApp:
		return f.appText()
	case FaultBuffering:
		return f.hopText()
	}
	switch {
	case !f.Running:
		return "Healthy: nothing stood out."
	case f.Stage != "":
		return fmt.Sprintf("%s, for %s so far.", stageText(f.Stage), span(f.Waits))
	case f.Usual > 0:
		return fmt.Sprintf("Healthy: an event about every %s.", span(f.Usual))
	}
	return "Healthy."
}

func stageText(stage string) string {
	switch stage {
	case "queue":
		return "Waits in Warmwire for its turn, or for a connection"
	case "dns":
		return "Looks up the provider's name"
	case "connect":
		return "Opens a connection to the provider"
	case "tls":
		return "Agrees on encryption with the provider"
	case "send":
		return "Sends the request"
	case "wait":
		return "The provider has the request and has not answered yet"
	}
	return "The provider has answered, and its first token has not come yet"
}

func (f Finding) providerText() string {
	switch {
	case f.Stage != "":
		return fmt.Sprintf("The provider is slow: it has had the request for %s and has sent no token.", span(f.Waits))
	case f.Running && !f.Gives && f.Waits >= longSilence:
		return fmt.Sprintf("The provider is silent, for %s now.", span(f.Waits))
	case f.Longest >= longSilence:
		return fmt.Sprintf("The provider was silent for %s.", span(f.Longest))
	}
	return fmt.Sprintf("The provider was slow: its first token took %s.", span(f.Head))
}

func (f Finding) networkText() string {
	switch {
	case f.Stage != "":
		return fmt.Sprintf("The network is late: %s, for %s so far.", lower(stageText(f.Stage)), span(f.Waits))
	case f.Unheard >= slowOpening:
		return fmt.Sprintf("The network is late: the provider's side has not answered a probe for %s.", span(f.Unheard))
	case f.Disorder > 0:
		return fmt.Sprintf("The network loses or delays packets: events were late by %s of the %s%s.", span(f.Parts.Network), map[bool]string{true: "last "}[f.Running], span(f.Span))
	case f.Proven || f.Parts.Network >= worthNaming:
		return fmt.Sprintf("The network was late: events came %s after they were sent, in all.", span(f.Parts.Network))
	}
	return fmt.Sprintf("The network was late: opening the connection took %s.", span(f.Opening))
}

func (f Finding) appText() string {
	switch {
	case f.AppBytes > 0 && f.Gives && f.Waits >= worthNaming:
		return fmt.Sprintf("Your app does not read: %s wait for it, since %s.", bytes(f.AppBytes), span(f.Waits))
	case f.AppBytes > 0:
		return fmt.Sprintf("Your app reads too slowly: %s wait for it.", bytes(f.AppBytes))
	}
	return fmt.Sprintf("Your app read too slowly: %s of %s went by because it did not take what had come.", span(f.Parts.App), span(f.Span))
}

func (f Finding) hopText() string {
	const who = "Something between Warmwire and the model collects events"
	if b := f.Batches; b.Count > 0 {
		return fmt.Sprintf("%s and passes them on in batches: %d events arrived at once after %s, %d times.", who, b.Events, span(b.After), b.Count)
	}
	return fmt.Sprintf("%s: all %d arrived at once, %s after the request.", who, f.Tokens, span(f.Head))
}

// Evidence is what speaks for it, one sentence each.
func (f Finding) Evidence() (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if f.Stage != "" {
		return nil
	}
	switch {
	case f.Usual > 0 && f.Fault == FaultBuffering: // the silences are the hop's
		say("Events: one every %s on average, if they had not been held back.", span(f.Usual))
	case f.Usual > 0:
		say("Events: one every %s on average, the longest silence of the provider %s.", span(f.Usual), span(f.Longest))
	}
	if b := f.Batches; f.Fault == FaultBuffering && b.Count > 0 {
		kind := "They end with whole events: it may also be the provider that sends them so."
		if b.Fixed {
			kind = "They are cut by size and not by events: somebody fills a buffer before passing it on."
		}
		say("Batches: %d, with %d events and %s each. %s", b.Count, b.Events, bytes(b.Bytes), kind)
	}
	f.sayPath(say)
	switch {
	case f.AppBytes > 0:
		say("App: %s wait for it.", bytes(f.AppBytes))
	case f.Parts.App < worthNaming:
		say("App: it reads what comes at once.")
	}
	return lines
}

func (f Finding) sayPath(say func(string, ...any)) {
	if !f.Known {
		say("Network: nothing is known of it on this kind of connection.")
		return
	}
	rtt := ""
	if f.RTT > 0 {
		rtt = "round trip " + span(f.RTT) + ", "
	}
	switch {
	case f.Blind && f.Disorder == 0:
		say("Network: %slost packets do not show on this kind of connection.", rtt)
	case f.Disorder == 0:
		say("Network: %sno packet was lost or late.", rtt)
	case f.Segments > 0:
		say("Network: %s%d of %d packets came out of order or were sent again: some were lost or late.", rtt, f.Disorder, f.Segments)
	default:
		say("Network: %s%d packets came out of order or were sent again.", rtt, f.Disorder)
	}
	switch {
	case f.Unheard >= worthNaming:
		say("Probe: sent %s ago, and not answered yet.", span(f.Unheard))
	case f.Proved:
		say("Probe: answered while the provider was silent, so the network was not what was late.")
	}
}

// span is a duration as people read it.
func span(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

func bytes(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

// lower begins a sentence's part.
func lower(s string) string { return string(s[0]|0x20) + s[1:] }
