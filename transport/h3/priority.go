// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"net/http"
	"strings"

	"github.com/quic-go/quic-go/quicvarint"
)

// urgencies are the classes' priority fields (RFC 9218 §4). A model's answer is
// of use piece by piece, so it is incremental. The default class is the default
// urgency, which needs no word.
var urgencies = [classes]string{Interactive: "u=1, i", Default: "", Batch: "u=6"}

// sending are the classes' urgencies for our own uploads.
var sending = [classes]int8{Interactive: 1, Default: 3, Batch: 6}

// setPriority decides what the peer hears. The app's own priority field wins over
// the class.
func (s *stream) setPriority() {
	if !s.c.cfg.Priority {
		return
	}
	s.urgency = urgencies[s.class]
	if own := priorityField(s.req); own != "" {
		s.urgency = own
	}
}

// priorityField is the app's own priority.
func priorityField(req *http.Request) string {
	if v := req.Header["Priority"]; len(v) > 0 {
		return v[0]
	}
	for k, v := range req.Header {
		if len(v) > 0 && strings.EqualFold(k, "priority") {
			return v[0]
		}
	}
	return ""
}

// priorityUpdate is the frame that says it once more (RFC 9218 §7.2): hops that
// leave the field to the origin read this one.
func priorityUpdate(id int64, urgency string) []byte {
	n := quicvarint.Len(uint64(id)) + len(urgency)
	b := appendFrame(make([]byte, 0, n+headerBytes), framePriorityUpdate, uint64(n))
	return append(quicvarint.Append(b, uint64(id)), urgency...)
}
