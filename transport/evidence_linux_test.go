// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/internal/netlab"
)

// A network that loses packets shows in a stream's connection, and a faultless one does not.
func TestLossShows(t *testing.T) {
	for name, loss := range map[string]float64{"faultless": 0, "lossy": 0.2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			down := netlab.Link{Delay: 10 * time.Millisecond, Loss: loss}
			f := newFar(t, true, netlab.Config{Up: netlab.Link{Delay: 10 * time.Millisecond}, Down: down}, func(w http.ResponseWriter, _ *http.Request) {
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for range 200 {
					_, _ = io.WriteString(w, "token\n")
					_ = http.NewResponseController(w).Flush()
					<-tick.C
				}
			})
			var path interface {
				Evidence() (attribution.Evidence, bool)
			}
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
				path, _ = i.Conn.(interface {
					Evidence() (attribution.Evidence, bool)
				})
			}})
			resp, err := f.tr.RoundTrip(request(t, http.MethodPost, f.url, "/", nil).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			before, _ := path.Evidence()
			if b, err := io.ReadAll(resp.Body); err != nil || len(b) != 200*len("token\n") {
				t.Errorf("%d bytes, %v", len(b), err)
			}
			after, known := path.Evidence()
			if disorder := after.Disorder - before.Disorder; !known || (disorder >= 5) != (loss > 0) { // a busy machine may send one again in vain
				t.Errorf("%d segments were out of order", disorder)
			}
			_ = resp.Body.Close()
		})
	}
}
