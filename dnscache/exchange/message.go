// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// The record types that an [Answer] is made of.
const (
	TypeA     = dns.TypeA
	TypeCNAME = dns.TypeCNAME
	TypeAAAA  = dns.TypeAAAA
	TypeHTTPS = dns.TypeHTTPS
)

// The reply codes that a cache tells apart (RFC 1035 §4.1.1).
const (
	RCodeSuccess  = dns.RcodeSuccess
	RCodeServFail = dns.RcodeServerFailure
	RCodeNXDomain = dns.RcodeNameError
	RCodeRefused  = dns.RcodeRefused
)

const (
	udpPayload  = 1232        // what passes every path unfragmented (DNS flag day 2020)
	padBlock    = 128         // RFC 8467 §4.1, queries
	headerBytes = 12          // RFC 1035 §4.1.1
	maxMessage  = 64<<10 - 1  // two octets of length, RFC 1035 §4.2.2
	questionEnd = 4           // type and class behind the name
	flagQR      = 1 << 7      // in octet 2
	flagTC      = 1 << 1      // in octet 2
	opcodeMask  = 0b0111_1000 // in octet 2
	rcodeMask   = 0b0000_1111 // in octet 3
)

// A Question asks for the records of one type at one name of class IN.
type Question struct {
	Name string // absolute, with or without the last dot, in any case; letters, digits, - and _
	Type uint16 // TypeA, TypeAAAA, TypeHTTPS, or another
}

// cleanName returns name in lower case without the last dot.
func cleanName(name string) (string, error) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || len(name) > 253 {
		return "", fmt.Errorf("a name has 1 to 253 characters, not %d", len(name))
	}
	label := 0
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '.':
			if label == 0 {
				return "", errors.New("a name has no empty part")
			}
			label = 0
			continue
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return "", fmt.Errorf("character %q is not part of a host name: write international names in their xn-- form", c)
		}
		if label++; label > 63 {
			return "", errors.New("a part of a name has at most 63 characters")
		}
	}
	if label == 0 {
		return "", errors.New("a name has no empty part")
	}
	return name, nil
}

// A query is a question ready for the wire.
type query struct {
	name    string // in lower case without the last dot
	qtype   uint16
	wire    string // the name as it was sent, with the last dot
	message []byte // packed; only its id may be changed, on a copy
	edns    bool
}

// How a query is packed.
type packing struct {
	mixCase   bool // for UDP: 0x20
	keepalive bool // RFC 7828 §3.2.1: never over UDP
	pad       bool // RFC 8467: only over encrypted ways
	noEDNS    bool // for a server that does not know it
}

func newQuery(name string, qtype uint16, p packing) (*query, error) {
	q := &query{name: name, qtype: qtype, wire: name + ".", edns: !p.noEDNS}
	if p.mixCase {
		q.wire = mixCase(q.wire)
	}
	m := &dns.Msg{Question: []dns.Question{{Name: q.wire, Qtype: qtype, Qclass: dns.ClassINET}}}
	m.RecursionDesired = true
	m.AuthenticatedData = true // asks for the AD bit, RFC 6840 §5.7
	var padding *dns.EDNS0_PADDING
	if !p.noEDNS {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(udpPayload)
		if p.keepalive {
			opt.Option = append(opt.Option, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE})
		}
		if p.pad {
			padding = new(dns.EDNS0_PADDING)
			opt.Option = append(opt.Option, padding)
		}
		m.Extra = []dns.RR{opt}
	}
	packed, err := m.Pack()
	if err == nil && padding != nil {
		padding.Padding = make([]byte, (padBlock-len(packed)%padBlock)%padBlock)
		packed, err = m.Pack()
	}
	q.message = packed
	return q, err
}

// mixCase gives each letter a random case, so that a forger has to guess it.
func mixCase(name string) string {
	b := []byte(name)
	random := make([]byte, len(b))
	_, _ = rand.Read(random) // never fails: crypto/rand ends the program instead
	for i, c := range b {
		if 'a' <= c && c <= 'z' && random[i]&1 == 1 {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

func randomID() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.BigEndian.Uint16(b[:])
}

// withID returns a copy of the message under the given id, behind room for a
// prefix.
func (q *query) withID(id uint16, prefix int) []byte {
	b := make([]byte, prefix+len(q.message))
	copy(b[prefix:], q.message)
	binary.BigEndian.PutUint16(b[prefix:], id)
	return b
}

// A match says how a message fits a query.
type match int

const (
	matchNone    match = iota // it answers something else, or nothing
	matchLoosely              // right but for what a forger would not know, or without the question
	matchExactly
)

// fits compares a message with a query sent under id (RFC 5452 §9.1).
func (q *query) fits(message []byte, id uint16) match {
	if len(message) < headerBytes || binary.BigEndian.Uint16(message) != id ||
		message[2]&flagQR == 0 || message[2]&opcodeMask != 0 {
		return matchNone
	}
	questions := binary.BigEndian.Uint16(message[4:])
	if questions == 0 || len(message) == headerBytes {
		// Some servers refuse with the header alone. Success needs the question.
		if message[3]&rcodeMask != dns.RcodeSuccess {
			return matchLoosely
		}
		return matchNone
	}
	name, end, err := dns.UnpackDomainName(message, headerBytes)
	if err != nil || questions != 1 || len(message) < end+questionEnd ||
		binary.BigEndian.Uint16(message[end:]) != q.qtype || binary.BigEndian.Uint16(message[end+2:]) != dns.ClassINET {
		return matchNone
	}
	switch {
	case name == q.wire:
		return matchExactly
	case strings.EqualFold(name, q.wire):
		return matchLoosely
	}
	return matchNone
}

func truncated(message []byte) bool { return message[2]&flagTC != 0 }

// A reply is an answer with what only this package needs of it.
type reply struct {
	answer       Answer
	edns         bool // the server knows EDNS
	hasKeepalive bool
	keepalive    time.Duration
}

// tooOld reports an answer of a server that does not know EDNS (RFC 6891 §7).
func (r reply) tooOld() bool {
	return !r.edns && (r.answer.RCode == dns.RcodeFormatError || r.answer.RCode == dns.RcodeNotImplemented)
}

// parse reads a message that fits q.
func (q *query) parse(message []byte) (reply, error) {
	m, err := unpack(message)
	if err != nil {
		return reply{}, err
	}
	r := reply{answer: Answer{RCode: m.Rcode, Authenticated: m.AuthenticatedData}}
	if opt := m.IsEdns0(); opt != nil {
		r.edns = true
		r.readOptions(opt)
	}
	if r.answer.Records, err = follow(q.name, q.qtype, m.Answer); err != nil {
		return reply{}, err
	}
	r.answer.SOA = findSOA(m.Ns)
	return r, nil
}

// unpack is strict where the library is lenient: a message that ends before all
// its records is damaged, not short.
func unpack(message []byte) (*dns.Msg, error) {
	if len(message) < headerBytes || len(message) > maxMessage {
		return nil, fmt.Errorf("%w: %d octets", errBadAnswer, len(message))
	}
	var counts [4]int
	total := 0
	for i := range counts {
		counts[i] = int(binary.BigEndian.Uint16(message[4+2*i:]))
		total += counts[i]
	}
	if total > maxRecords {
		return nil, fmt.Errorf("%w: %d records, at most %d are read", errBadAnswer, total, maxRecords)
	}
	m := new(dns.Msg)
	if err := m.Unpack(message); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	onlyHeader := len(message) == headerBytes && m.Rcode != dns.RcodeSuccess
	if got := [4]int{len(m.Question), len(m.Answer), len(m.Ns), len(m.Extra)}; got != counts && !onlyHeader {
		return nil, fmt.Errorf("%w: ends before its last record", errBadAnswer)
	}
	return m, nil
}

func (r *reply) readOptions(opt *dns.OPT) {
	for _, option := range opt.Option {
		switch o := option.(type) {
		case *dns.EDNS0_EDE:
			if len(r.answer.Extended) < maxExtended {
				r.answer.Extended = append(r.answer.Extended, ExtendedError{Code: o.InfoCode, Text: printable(o.ExtraText)})
			}
		case *dns.EDNS0_TCP_KEEPALIVE:
			r.hasKeepalive = true
			r.keepalive = time.Duration(o.Timeout) * 100 * time.Millisecond // RFC 7828 §3.1
		}
	}
}

// printable makes text of a server fit for a log line.
func printable(text string) string {
	b := []byte(text)
	b = b[:min(len(b), maxText)]
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, b))
}
