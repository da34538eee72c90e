// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestRetiredPoolKeepsNothing: a connection lasts as long as what it serves, and so does
// one that is opened for who comes later.
func TestRetiredPoolKeepsNothing(t *testing.T) {
	for name, limit := range map[string]int{"HTTP/1.1": 1, "multiplexed": 100} {
		t.Run(name, func(t *testing.T) {
			o := &origin{limit: limit}
			bubble(t, o, Config{}, func(t *testing.T, p *Pool) {
				ended := make(chan error, 1)
				go func() { ended <- request(t.Context(), p, Want{}, time.Minute) }()
				synctest.Wait()
				p.Retire()
				p.Keep(1) // is too late
				synctest.Wait()
				if n := len(p.State().Conns); n != 1 {
					t.Errorf("%d connections under a request, want 1", n)
				}
				for range 2 {
					if err := <-ended; err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if !p.Idle() {
						t.Errorf("left: %+v", p.State())
					}
					go func() { ended <- request(t.Context(), p, Want{}, time.Second) }()
				}
				<-ended
			})
		})
	}
}
