// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// exemplar is the label that joins an observation with its trace; nil = there is none.
// What is no trace id is not shown.
func exemplar(trace string) prometheus.Labels {
	if len(trace) != 32 || strings.Trim(trace, "0123456789abcdef") != "" {
		return nil
	}
	return prometheus.Labels{"trace_id": trace}
}

// observeTraced observes d. An exemplar costs more than the observation: it is for what
// happens once a request.
func observeTraced(o prometheus.Observer, d time.Duration, trace prometheus.Labels) {
	if with, ok := o.(prometheus.ExemplarObserver); ok && trace != nil {
		with.ObserveWithExemplar(d.Seconds(), trace)
		return
	}
	o.Observe(d.Seconds())
}
