// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"
)

// A Verdict says what the first bytes of a tunnel are.
type Verdict int

// The verdicts.
const (
	More   Verdict = iota // they may become a ClientHello
	Client                // a whole ClientHello, and perhaps more
	HTTP                  // a request in clear
	Other                 // anything else
)

// A Hello is what counts of a ClientHello (RFC 8446 §4.1.2).
type Hello struct {
	ServerName string   // "" = none
	Protocols  []string // ALPN, as offered; nil = none
	// Client stands for the kind of client: one library in one configuration offers the same
	// each time. Never 0 if there is a ClientHello.
	Client uint64
}

const (
	recordHeader  = 5 // type, version, length
	messageHeader = 4 // type, length
	maxRecord     = 16 << 10
	maxHello      = 64 << 10 // some with several key shares have 4 KiB; a guess with room

	typeHandshake   = 0x16
	typeClientHello = 0x01
	extServerName   = 0
	extALPN         = 16
)

// Look reads b, the first bytes that a client sent. It may be asked again with more.
func Look(b []byte) (Hello, Verdict) {
	if len(b) > 0 && b[0] != typeHandshake {
		return Hello{}, inClear(b)
	}
	message, v := handshake(b)
	if v != Client {
		return Hello{}, v
	}
	h, ok := parse(message)
	if !ok {
		return Hello{}, Other
	}
	return h, Client
}

// requests are how a request in clear begins: an origin-form or absolute-form target
// (RFC 9112 §3.2), or HTTP/2's preface (RFC 9113 §3.4).
var requests = [...]string{
	"GET /", "HEAD /", "POST /", "PUT /", "PATCH /", "DELETE /", "OPTIONS /", "OPTIONS *",
	"GET http", "HEAD http", "POST http", "PUT http", "PATCH http", "DELETE http", "OPTIONS http", "PRI * HTTP/2.0\r\n",
}

func inClear(b []byte) Verdict {
	v := Other
	for _, begin := range requests {
		switch {
		case len(b) >= len(begin) && string(b[:len(begin)]) == begin:
			return HTTP
		case len(b) < len(begin) && string(b) == begin[:len(b)]:
			v = More
		}
	}
	return v
}

// handshake takes the first handshake message out of its records, of which it may
// need several (RFC 8446 §5.1).
func handshake(b []byte) ([]byte, Verdict) {
	var head [messageHeader]byte // of the message
	have, need := 0, messageHeader
	end := 0 // of the record's content
	for rest := b; have < need; rest = rest[min(end, len(rest)):] {
		n, v := record(rest)
		if v == Other || v == More && n == 0 {
			return nil, v
		}
		part := rest[recordHeader:]
		if end = recordHeader + n; len(rest) >= end {
			part = rest[recordHeader:end]
		}
		if have < messageHeader {
			copy(head[have:], part)
			if have+len(part) >= 1 && head[0] != typeClientHello {
				return nil, Other
			}
			if have+len(part) >= messageHeader {
				need += int(head[1])<<16 | int(head[2])<<8 | int(head[3])
			}
		}
		if need > maxHello {
			return nil, Other
		}
		if have += len(part); have < need && v == More {
			return nil, More
		}
	}
	return join(b, need), Client
}

// record looks at the record that b begins with and returns the length of its content,
// 0 while that is not known. More: b does not hold all of it.
func record(b []byte) (int, Verdict) {
	switch {
	case len(b) > 0 && b[0] != typeHandshake, len(b) > 1 && b[1] != 3, len(b) > 2 && b[2] > 4:
		return 0, Other
	case len(b) < recordHeader:
		return 0, More
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n == 0 || n > maxRecord {
		return 0, Other
	}
	if len(b) < recordHeader+n {
		return n, More
	}
	return n, Client
}

// join returns the body of the message of need bytes that the records in b hold.
func join(b []byte, need int) []byte {
	if n := int(binary.BigEndian.Uint16(b[3:])); n >= need {
		return b[recordHeader+messageHeader : recordHeader+need]
	}
	message := make([]byte, 0, need)
	for len(message) < need {
		n := int(binary.BigEndian.Uint16(b[3:]))
		part := b[recordHeader:min(len(b), recordHeader+n)]
		message = append(message, part[:min(len(part), need-len(message))]...)
		b = b[recordHeader+len(part):]
	}
	return message[messageHeader:]
}

// parse reads a ClientHello's body.
func parse(b []byte) (h Hello, ok bool) {
	c := cursor{b, true}
	c.take(2 + 32) // version, random
	c.vector(1)    // session id
	suites := c.vector(2)
	c.vector(1) // compression
	if c.ok && len(c.b) == 0 {
		return Hello{Client: kindOf(suites, nil)}, true // no extensions
	}
	extensions := cursor{c.vector(2), true}
	if !c.ok || len(c.b) != 0 {
		return Hello{}, false
	}
	var names, protocols bool
	var kinds []uint16
	for len(extensions.b) > 0 {
		kind := extensions.number()
		kinds = append(kinds, uint16(kind))
		body := cursor{extensions.vector(2), true}
		switch {
		case !extensions.ok:
			return Hello{}, false
		case kind == extServerName && !names:
			names = true
			h.ServerName, ok = body.serverName()
		case kind == extALPN && !protocols:
			protocols = true
			h.Protocols, ok = body.protocols()
		case kind == extServerName, kind == extALPN:
			return Hello{}, false // twice (RFC 8446 §4.2)
		default:
			continue
		}
		if !ok {
			return Hello{}, false
		}
	}
	h.Client = kindOf(suites, kinds)
	return h, true
}

// Extensions that one client sends at times: padding, pre_shared_key, early_data, cookie.
var fleeting = [...]uint16{21, 41, 42, 44}

// kindOf hashes what a client can do. Browsers put extensions in a new order each time, and
// values without a meaning among them (RFC 8701).
func kindOf(suites []byte, kinds []uint16) uint64 {
	kinds = slices.DeleteFunc(kinds, func(k uint16) bool { return grease(k) || slices.Contains(fleeting[:], k) })
	slices.Sort(kinds)
	sum := fnv.New64a()
	for i := 0; i+1 < len(suites); i += 2 {
		if s := binary.BigEndian.Uint16(suites[i:]); !grease(s) {
			_, _ = sum.Write(suites[i : i+2])
		}
	}
	for _, k := range kinds {
		_, _ = sum.Write([]byte{byte(k >> 8), byte(k)})
	}
	return max(1, sum.Sum64())
}

func grease(v uint16) bool { return v&0x0f0f == 0x0a0a && byte(v>>8) == byte(v) }

// A cursor reads from b until something is missing.
type cursor struct {
	b  []byte
	ok bool
}

func (c *cursor) take(n int) []byte {
	if !c.ok || len(c.b) < n {
		c.ok, c.b = false, nil
		return nil
	}
	part := c.b[:n]
	c.b = c.b[n:]
	return part
}

// vector reads a length of size bytes and as much as it says.
func (c *cursor) vector(size int) []byte {
	n := 0
	for _, d := range c.take(size) {
		n = n<<8 | int(d)
	}
	return c.take(n)
}

func (c *cursor) number() int {
	if p := c.take(2); p != nil {
		return int(binary.BigEndian.Uint16(p))
	}
	return -1
}

// serverName reads RFC 6066 §3: a list with one name of one kind.
func (c *cursor) serverName() (string, bool) {
	list := cursor{c.vector(2), true}
	kind := list.take(1)
	name := list.vector(2)
	whole := c.ok && list.ok && len(c.b) == 0 && len(list.b) == 0
	if !whole || kind[0] != 0 || len(name) == 0 {
		return "", false
	}
	return string(name), true
}

// protocols reads RFC 7301 §3.1.
func (c *cursor) protocols() ([]string, bool) {
	list := cursor{c.vector(2), true}
	if !c.ok || len(c.b) != 0 || len(list.b) == 0 {
		return nil, false
	}
	var out []string
	for len(list.b) > 0 {
		p := list.vector(1)
		if len(p) == 0 {
			return nil, false
		}
		out = append(out, string(p))
	}
	return out, true
}

// Why a ClientHello is not answered in the place of its host.
const (
	OtherName     = "other_name"
	OtherProtocol = "other_protocol"
)

// spoken are the protocols that are understood in the place of a host.
var spoken = [...]string{"h2", "http/1.1"}

// Fits says why the handshake must go on with the host itself, "" if it need not: it
// asks for another name than the tunnel (as Encrypted ClientHello does too), or offers
// only protocols that are not HTTP. host is in lower case and without a dot at its end.
func (h Hello) Fits(host string) string {
	if h.ServerName != "" && !strings.EqualFold(h.ServerName, host) {
		return OtherName
	}
	if h.Protocols != nil && !slices.ContainsFunc(spoken[:], func(p string) bool { return slices.Contains(h.Protocols, p) }) {
		return OtherProtocol
	}
	return ""
}
