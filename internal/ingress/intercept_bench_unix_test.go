// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ingress

import (
	"encoding/json"
	"io"
	"net/http"
	"syscall"
	"testing"
)

// BenchmarkCall compares a call on a kept connection by base URL, through an
// intercepted tunnel and through a blind one.
func BenchmarkCall(b *testing.B) {
	r := newTLSRig(b, nil)
	blind := r.through(r.theirs(), false)
	for _, bb := range []struct {
		name, target string
		client       *http.Client
	}{
		{"base URL", "http://" + r.addr + "/up/x", r.through(r.roots, false)},
		{"intercepted", "https://" + host + "/x", r.through(r.roots, false)},
		{"intercepted HTTP2", "https://" + host + "/x", r.through(r.roots, true)},
		{"blind", "https://sub." + host + "/x", blind},
	} {
		b.Run(bb.name, func(b *testing.B) {
			if bb.name == "base URL" {
				bb.client.Transport.(*http.Transport).Proxy = nil
			}
			call := func() {
				resp, err := bb.client.Get(bb.target)
				if err != nil {
					b.Fatal(err)
				}
				if err := json.NewDecoder(resp.Body).Decode(new(seen)); err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp.Status, err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				for len(r.records) > 0 {
					<-r.records
				}
			}
			call()
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				call()
				n++
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(used)/float64(n)/1000, "cpu-µs/op")
		})
	}
}
