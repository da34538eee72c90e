// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"strings"

	"github.com/warmwire/warmwire/transport/semantics"
)

// weights are RFC 7540's for the urgencies 0 to 7, less one; 3 is its default, 16.
var weights = [8]uint8{255, 191, 63, 15, 7, 3, 1, 0}

const defaultUrgency = 3

// setPriority decides what the peer hears. The app's own priority field wins over
// the class, for the other signals as well.
func (s *stream) setPriority() {
	if !s.c.cfg.Priority {
		return
	}
	s.urgency = s.class.Urgency()
	if own := semantics.PriorityField(s.req); own != "" {
		s.urgency = own
	}
	s.weight = weights[urgencyOf(s.urgency)]
}

// urgencyOf is the u parameter of a priority field, a dictionary of RFC 8941. What
// is not valid is the default (RFC 9218 §4.1).
func urgencyOf(field string) int {
	u := defaultUrgency
	for item := range strings.SplitSeq(field, ",") {
		item, _, _ = strings.Cut(item, ";")
		if v, ok := strings.CutPrefix(strings.TrimSpace(item), "u="); ok {
			u = defaultUrgency
			if len(v) == 1 && v[0] >= '0' && v[0] <= '7' {
				u = int(v[0] - '0')
			}
		}
	}
	return u
}

// prioritiseLocked sends PRIORITY_UPDATE while the peer may or does speak it
// (RFC 9218 §2.1.1).
func (c *Conn) prioritiseLocked(s *stream) {
	if s.urgency == "" || (c.peer.seen && !c.peer.noRFC7540) {
		return
	}
	_ = c.fw.WritePriorityUpdate(s.id, s.urgency)
}
