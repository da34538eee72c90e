// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/tls"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"
)

// TestPhasesAreOfTheLastAttempt makes three attempts with waits between them: none of
// these, and nothing of the attempts that failed, stands in a phase but Retry.
func TestPhasesAreOfTheLastAttempt(t *testing.T) {
	const ms = time.Millisecond
	const retry = 6*time.Minute + time.Hour + time.Minute + time.Hour
	for _, tt := range []struct {
		name   string
		opened bool // for the last attempt
		want   Phases
	}{
		{"a new connection", true, Phases{DNS: 1 * ms, Connect: 2 * ms, TLS: 3 * ms, Send: 4 * ms, Wait: 5 * ms, Retry: retry}},
		{"one that is there", false, Phases{Queue: 6 * ms, Send: 4 * ms, Wait: 5 * ms, Retry: retry}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sw stopwatch
				h := sw.trace()
				attempt := func(opened bool, ms time.Duration) {
					h.GetConn("")
					if opened {
						h.DNSStart(httptrace.DNSStartInfo{})
						time.Sleep(1 * ms)
						h.DNSDone(httptrace.DNSDoneInfo{})
						h.ConnectStart("", "")
						time.Sleep(2 * ms)
						h.ConnectDone("", "", nil)
						h.TLSHandshakeStart()
						time.Sleep(3 * ms)
						h.TLSHandshakeDone(tls.ConnectionState{}, nil)
					} else {
						time.Sleep(6 * ms)
					}
				}
				attempt(true, time.Minute) // and then it breaks
				time.Sleep(time.Hour)
				attempt(true, 0)
				h.GotConn(httptrace.GotConnInfo{})
				h.WroteRequest(httptrace.WroteRequestInfo{})
				time.Sleep(time.Minute)
				h.GotFirstResponseByte() // of an answer that is tried again
				time.Sleep(time.Hour)
				attempt(tt.opened, ms)
				h.GotConn(httptrace.GotConnInfo{Reused: !tt.opened})
				time.Sleep(4 * ms)
				h.WroteRequest(httptrace.WroteRequestInfo{})
				time.Sleep(5 * ms)
				h.GotFirstResponseByte()
				var rec Record
				sw.stop(&rec, time.Now())
				if rec.Phases != tt.want || rec.Attempts != 3 {
					t.Errorf("%+v in %d attempts, want %+v in 3", rec.Phases, rec.Attempts, tt.want)
				}
			})
		})
	}
}
