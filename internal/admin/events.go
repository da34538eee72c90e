// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	eventEvery = time.Second      // between two events
	eventWrite = 10 * time.Second // for one: who does not read is let go
	maxWatches = 16               // at once: each costs what /v1/status and /v1/streams cost, every second
)

// events tells of the status and the streams once a second, until the caller leaves:
// `event: state`, and as data {"status": …, "streams": …} as /v1/status and /v1/streams
// have them.
func (a *Admin) events(w http.ResponseWriter, r *http.Request) {
	if a.watches.Add(1) > maxWatches {
		a.watches.Add(-1)
		w.Header().Set("Retry-After", "5")
		(&refusal{http.StatusServiceUnavailable, "too_many_watches", fmt.Sprintf("%d callers follow the events already", maxWatches)}).write(w)
		return
	}
	defer a.watches.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	rc := http.NewResponseController(w)
	tick := time.NewTicker(eventEvery)
	defer tick.Stop()
	for {
		data, err := json.Marshal(map[string]any{"status": a.cfg.Status(), "streams": a.cfg.Streams()})
		if err != nil {
			return // what cannot be marshalled is shown by /v1/status
		}
		_ = rc.SetWriteDeadline(time.Now().Add(eventWrite)) // fails where there is no connection to be held
		if _, err := fmt.Fprintf(w, "event: state\ndata: %s\n\n", data); err != nil || rc.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}
