// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"
)

// parsed returns what an answer with the given records says of name.
func parsed(t *testing.T, name string, qtype uint16, records ...string) (Answer, error) {
	t.Helper()
	q, err := newQuery(name, qtype, packing{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := q.parse(pack(t, answerTo(t, unpackQuery(t, q.message), records...)))
	return r.answer, err
}

func TestAnswerFollowsTheChain(t *testing.T) {
	const s = time.Second
	alias := func(name, target string, ttl time.Duration) Record {
		return Record{Name: name, Type: TypeCNAME, TTL: ttl, Target: target}
	}
	address := func(name, addr string, ttl time.Duration) Record {
		r := Record{Name: name, Type: TypeA, TTL: ttl, Addr: netip.MustParseAddr(addr)}
		if r.Addr.Is6() {
			r.Type = TypeAAAA
		}
		return r
	}
	tests := []struct {
		name    string
		qtype   uint16
		records []string
		want    []Record
		ttl     time.Duration // of the answer; 0: it has none
	}{
		{"addresses", TypeA, []string{"api.test. 60 A 192.0.2.1", "api.test. 30 A 192.0.2.2"},
			[]Record{address("api.test", "192.0.2.1", 60*s), address("api.test", "192.0.2.2", 30*s)}, 30 * s},
		{"IPv6", TypeAAAA, []string{"api.test. 60 AAAA 2001:db8::1"}, []Record{address("api.test", "2001:db8::1", 60*s)}, 60 * s},
		{"chain in any order", TypeA, []string{"edge.cdn.test. 60 A 192.0.2.1", "b.cdn.test. 20 CNAME Edge.CDN.test.", "API.test. 300 CNAME b.cdn.test."},
			[]Record{alias("api.test", "b.cdn.test", 300*s), alias("b.cdn.test", "edge.cdn.test", 20*s), address("edge.cdn.test", "192.0.2.1", 60*s)}, 20 * s},
		{"chain to nothing", TypeA, []string{"api.test. 300 CNAME b.cdn.test."}, []Record{alias("api.test", "b.cdn.test", 300*s)}, 0},
		{"what nobody asked for", TypeA, []string{"other.test. 60 A 203.0.113.1", "api.test. 60 A 192.0.2.1", "api.test. 60 AAAA 2001:db8::1"},
			[]Record{address("api.test", "192.0.2.1", 60*s)}, 60 * s},
		{"other class", TypeA, []string{"api.test. 60 CH A 203.0.113.1"}, nil, 0},
		{"the alias itself", TypeCNAME, []string{"api.test. 60 CNAME b.test.", "b.test. 10 A 192.0.2.1"}, []Record{alias("api.test", "b.test", 60*s)}, 60 * s},
		{"the highest bit of a TTL", TypeA, []string{"api.test. 2147483648 A 192.0.2.1"}, []Record{address("api.test", "192.0.2.1", 0)}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parsed(t, "api.test", tt.qtype, tt.records...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.Records, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
			if ttl, _ := got.TTL(tt.qtype); ttl != tt.ttl {
				t.Errorf("TTL %v, want %v", ttl, tt.ttl)
			}
		})
	}
}

func TestAnswerChainsAreBounded(t *testing.T) {
	chain := func(n int) []string {
		records := []string{fmt.Sprintf("h%d.test. 60 A 192.0.2.1", n)}
		for i := range n {
			records = append(records, fmt.Sprintf("h%d.test. 60 CNAME h%d.test.", i, i+1))
		}
		return records
	}
	if got, err := parsed(t, "h0.test", TypeA, chain(maxChain)...); err != nil || len(got.Records) != maxChain+1 {
		t.Errorf("a chain of %d: %d records, %v", maxChain, len(got.Records), err)
	}
	for name, records := range map[string][]string{
		"too long": chain(maxChain + 1),
		"circle":   {"h0.test. 60 CNAME h1.test.", "h1.test. 60 CNAME h2.test.", "h2.test. 60 CNAME h1.test."},
		"itself":   {"h0.test. 60 CNAME h0.test."},
	} {
		if got, err := parsed(t, "h0.test", TypeA, records...); err == nil {
			t.Errorf("%s: %+v, want an error", name, got)
		}
	}
}

func TestAnswerReadsHTTPSRecords(t *testing.T) {
	tests := []struct {
		name, record string
		want         *Service // nil: left out
	}{
		{"all", `api.test. 60 HTTPS 1 svc.test. alpn="h3,h2" no-default-alpn port=8443 ipv4hint=192.0.2.1,192.0.2.2 ipv6hint=2001:db8::1 ech="AAEC"`,
			&Service{Priority: 1, Target: "svc.test", ALPN: []string{"h3", "h2"}, NoDefaultALPN: true, Port: 8443,
				IPv4Hints: addrList("192.0.2.1", "192.0.2.2"), IPv6Hints: addrList("2001:db8::1"), ECH: []byte{0, 1, 2}}},
		{"itself", `api.test. 60 HTTPS 1 . alpn=h2`, &Service{Priority: 1, Target: "api.test", ALPN: []string{"h2"}}},
		{"alias", `api.test. 60 HTTPS 0 Svc.test.`, &Service{Target: "svc.test"}},
		{"alias to nothing", `api.test. 60 HTTPS 0 .`, &Service{}},
		{"known and mandatory", `api.test. 60 HTTPS 1 . mandatory=alpn alpn=h2`, &Service{Priority: 1, Target: "api.test", ALPN: []string{"h2"}}},
		{"unknown", `api.test. 60 HTTPS 1 . key667=hello`, &Service{Priority: 1, Target: "api.test"}},
		{"unknown and mandatory", `api.test. 60 HTTPS 1 . mandatory=key667 key667=hello`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parsed(t, "api.test", TypeHTTPS, tt.record)
			if err != nil {
				t.Fatal(err)
			}
			var service *Service
			if len(got.Records) == 1 {
				service = got.Records[0].Service
			}
			if diff := cmp.Diff(tt.want, service, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("service (-want +got):\n%s", diff)
			}
		})
	}
}

// RFC 2308 §5: the smaller of the SOA's TTL and its minimum, and of the aliases
// that lead there.
func TestAnswerTimesNegatives(t *testing.T) {
	tests := []struct {
		name, soa string
		records   []string
		want      time.Duration
	}{
		{"minimum", "test. 86400 SOA ns.test. root.test. 1 2 3 4 60", nil, time.Minute},
		{"TTL", "test. 30 SOA ns.test. root.test. 1 2 3 4 86400", nil, 30 * time.Second},
		{"alias", "test. 30 SOA ns.test. root.test. 1 2 3 4 86400", []string{"api.test. 10 CNAME b.test."}, 10 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q, err := newQuery("api.test", TypeA, packing{})
			if err != nil {
				t.Fatal(err)
			}
			m := answerTo(t, unpackQuery(t, q.message), tt.records...)
			soa, err := dns.NewRR(tt.soa)
			if err != nil {
				t.Fatal(err)
			}
			m.Ns, m.AuthenticatedData, m.Rcode = []dns.RR{soa}, true, dns.RcodeNameError
			r, err := q.parse(pack(t, m))
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := r.answer.TTL(TypeA); !ok || got != tt.want {
				t.Errorf("TTL %v, %v; want %v", got, ok, tt.want)
			}
			if !r.answer.Authenticated || r.answer.SOA.Name != "test" || r.answer.RCode != RCodeNXDomain {
				t.Errorf("answer %+v", r.answer)
			}
		})
	}
}

func TestAnswerBoundsItsRecords(t *testing.T) {
	q, err := newQuery("a.test", TypeA, packing{})
	if err != nil {
		t.Fatal(err)
	}
	m := answerTo(t, unpackQuery(t, q.message))
	rr, _ := dns.NewRR("a.test. 60 A 192.0.2.1")
	for range maxRecords {
		m.Answer = append(m.Answer, rr)
	}
	m.Compress = true
	if _, err := q.parse(pack(t, m)); err == nil || !strings.Contains(err.Error(), "records") {
		t.Errorf("error %v, want one about the number of records", err)
	}
}

func TestQueryIsPaddedToWholeBlocks(t *testing.T) {
	for n := 1; n <= 60; n++ {
		q, err := newQuery(strings.Repeat("a", n)+".test", TypeHTTPS, packing{pad: true, keepalive: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(q.message)%padBlock != 0 || len(q.message) > 2*padBlock {
			t.Errorf("a name of %d octets makes %d", n+5, len(q.message))
		}
		if m := unpackQuery(t, q.message); len(m.IsEdns0().Option) != 2 {
			t.Errorf("options %v", m.IsEdns0().Option)
		}
	}
}

// FuzzAnswer reads any bytes as the answer to a question: it must not panic, and
// what it makes of them must stay within its bounds.
func FuzzAnswer(f *testing.F) {
	q, err := newQuery("api.model.test", TypeHTTPS, packing{})
	if err != nil {
		f.Fatal(err)
	}
	m := unpackQuery(f, q.message)
	full := answerTo(f, m, "api.model.test. 60 CNAME b.test.",
		`b.test. 60 HTTPS 1 svc.test. alpn="h3,h2" port=8443 ipv4hint=192.0.2.1 ipv6hint=2001:db8::1 ech="AAEC" key667=x`)
	full.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 1, ExtraText: "text"}, &dns.EDNS0_TCP_KEEPALIVE{Code: 11, Timeout: 5}}
	negative := answerTo(f, m)
	soa, _ := dns.NewRR("test. 30 SOA ns.test. root.test. 1 2 3 4 86400")
	negative.Ns = []dns.RR{soa}
	for _, seed := range []*dns.Msg{full, negative, answerTo(f, m, "api.model.test. 60 A 192.0.2.1", "api.model.test. 60 CNAME api.model.test.")} {
		b := pack(f, seed)
		f.Add(b)
		f.Add(b[:len(b)*2/3])
	}
	f.Add(append([]byte{0, 0, 0x81, 0x85, 0, 0, 0, 0, 0, 0, 0, 0}, 0xc0, 0x0c))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 2 && binary.BigEndian.Uint16(b) != 0 {
			binary.BigEndian.PutUint16(b, 0)
		}
		q.fits(b, 0) // reads names on its own
		r, err := q.parse(b)
		if err != nil {
			return
		}
		a := r.answer
		if len(b) > maxMessage || len(a.Records) > maxRecords || len(a.Extended) > maxExtended {
			t.Errorf("%d octets made %d records and %d extended errors", len(b), len(a.Records), len(a.Extended))
		}
		for _, rec := range a.Records {
			if rec.TTL < 0 || rec.Type != TypeHTTPS && rec.Type != TypeCNAME || rec.Type == TypeCNAME && rec.Target == "" {
				t.Errorf("record %+v", rec)
			}
		}
		for _, e := range a.Extended {
			if len(e.Text) > maxText || strings.ContainsFunc(e.Text, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("text %q", e.Text)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	q, err := newQuery("api.model.test", TypeA, packing{})
	if err != nil {
		b.Fatal(err)
	}
	message := pack(b, answerTo(b, unpackQuery(b, q.message), "api.model.test. 300 CNAME edge.cdn.test.",
		"edge.cdn.test. 60 A 192.0.2.1", "edge.cdn.test. 60 A 192.0.2.2"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := q.parse(message); err != nil {
			b.Fatal(err)
		}
	}
}
