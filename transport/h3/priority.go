// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"github.com/quic-go/quic-go/quicvarint"
	"github.com/warmwire/warmwire/transport/semantics"
)

// sending are the classes' urgencies for our own uploads.
var sending = [semantics.Classes]int8{semantics.Interactive: 1, semantics.Default: 3, semantics.Batch: 6}

// setPriority decides what the peer hears. The app's own priority field wins over
// the class.
func (s *stream) setPriority() {
	if !s.c.cfg.Priority {
		return
	}
	s.urgency = s.class.Urgency()
	if own := semantics.PriorityField(s.req); own != "" {
		s.urgency = own
	}
}

// priorityUpdate is the frame that says it once more (RFC 9218 §7.2): hops that
// leave the field to the origin read this one.
func priorityUpdate(id int64, urgency string) []byte {
	n := quicvarint.Len(uint64(id)) + len(urgency)
	b := appendFrame(make([]byte, 0, n+headerBytes), framePriorityUpdate, uint64(n))
	return append(quicvarint.Append(b, uint64(id)), urgency...)
}
