// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/dnscache/exchange"
	"github.com/warmwire/warmwire/internal/netlab"
)

func TestMain(m *testing.M) {
	if netlab.Main() { // this process is a child of a lab
		return
	}
	goleak.VerifyTestMain(m)
}

const (
	host    = "api.example.com"
	systemX = "udp://10.0.0.53" // the nameserver in the resolv.conf of tests
	oneX    = "https://9.9.9.9"
	twoX    = "tls://8.8.8.8"
)

// A fake is a resolver in memory. The fields above mu are set before it is used
// or with set.
type fake struct {
	mu     sync.Mutex
	delay  time.Duration
	slow   map[uint16]time.Duration // instead of delay, by type
	silent bool
	err    error
	rcode  map[string]int  // by name, or "" for all
	fails  map[uint16]bool // SERVFAIL, by type
	denies map[uint16]bool // NXDOMAIN, by type
	nodata bool            // names that are not in zone exist
	zone   map[string][]string
	asked  []string
	at     map[string][]time.Time
}

// set changes a fake under the Resolver's feet.
func (f *fake) set(change func(f *fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// questions returns what was asked since the last call, as "name type".
func (f *fake) questions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// times returns when a question was asked.
func (f *fake) times(q string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at[q]
}

func typeName(t uint16) string {
	switch t {
	case exchange.TypeA:
		return "A"
	case exchange.TypeAAAA:
		return "AAAA"
	}
	return "HTTPS"
}

// A fakeServer is a fake as one Resolver has opened it.
type fakeServer struct {
	*fake
	name   string
	closed chan struct{}
	once   *sync.Once
}

func (s fakeServer) Name() string { return s.name }

func (s fakeServer) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s fakeServer) Exchange(ctx context.Context, q exchange.Question) (exchange.Answer, error) {
	s.mu.Lock()
	asked := q.Name + " " + typeName(q.Type)
	s.asked = append(s.asked, asked)
	if s.at == nil {
		s.at = map[string][]time.Time{}
	}
	s.at[asked] = append(s.at[asked], time.Now())
	delay, err := s.delay, s.err
	if d, ok := s.slow[q.Type]; ok {
		delay = d
	}
	if s.silent || delay > 5*time.Second {
		delay, err = 5*time.Second, &exchange.Error{Resolver: s.name, Kind: exchange.KindTimeout, Err: errors.New("no answer in time")}
	}
	a := s.answer(q)
	s.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return a, err
	case <-ctx.Done():
		return exchange.Answer{}, &exchange.Error{Resolver: s.name, Kind: exchange.KindCanceled, Err: ctx.Err()}
	case <-s.closed:
		return exchange.Answer{}, &exchange.Error{Resolver: s.name, Kind: exchange.KindClosed, Err: exchange.ErrClosed}
	}
}

// answer reads the zone: each record is "TTL type data", and "TTL SOA minimum"
// times what is not there.
func (f *fake) answer(q exchange.Question) exchange.Answer {
	var a exchange.Answer
	for _, name := range []string{q.Name, ""} {
		if code, ok := f.rcode[name]; ok {
			return exchange.Answer{RCode: code}
		}
	}
	if f.fails[q.Type] {
		return exchange.Answer{RCode: exchange.RCodeServFail}
	}
	if f.denies[q.Type] {
		return exchange.Answer{RCode: exchange.RCodeNXDomain, SOA: &exchange.SOA{TTL: time.Minute, Minimum: time.Minute}}
	}
	records, ok := f.zone[q.Name]
	if !ok {
		records = f.zone["*"]
		if f.zone["*"] == nil {
			records = []string{"30 SOA 30"}
		}
		wild := slices.ContainsFunc(records, func(text string) bool { return !strings.Contains(text, "SOA") })
		if !wild && !f.nodata {
			a.RCode = exchange.RCodeNXDomain
		}
	}
	for _, text := range records {
		var seconds int
		var kind, data string
		if _, err := fmt.Sscan(text, &seconds, &kind, &data); err != nil {
			panic("record " + text)
		}
		ttl := time.Duration(seconds) * time.Second
		switch {
		case kind == "SOA":
			minimum, _ := time.ParseDuration(data + "s")
			a.SOA = &exchange.SOA{TTL: ttl, Minimum: minimum}
		case kind != typeName(q.Type):
		case kind == "HTTPS":
			a.Records = append(a.Records, exchange.Record{Type: q.Type, TTL: ttl, Service: &Service{Priority: 1, Target: q.Name, ALPN: strings.Split(data, ",")}})
		default:
			a.Records = append(a.Records, exchange.Record{Type: q.Type, TTL: ttl, Addr: netip.MustParseAddr(data)})
		}
	}
	return a
}

// dead is a fake that never answers.
func dead() *fake { return &fake{silent: true} }

// knows returns a fake with one name, which answers after 20 ms.
func knows(name string, records ...string) *fake {
	return &fake{delay: 20 * time.Millisecond, zone: map[string][]string{name: records}}
}

// A bench is a Resolver over fakes, with the files of a machine.
type bench struct {
	*Resolver
	t      testing.TB
	dir    string
	mu     sync.Mutex
	seen   []string      // events
	ahead  time.Duration // of the wall clock
	hits   map[Result]int
	opened []chan struct{} // of each server; closed with it
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// events returns the kinds and subjects of the events since the last call.
func (b *bench) events() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen
	b.seen = nil
	return seen
}

func (b *bench) result(r Result) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hits[r]
}

// start makes a Resolver whose files are in dir, and runs it. Resolvers that have
// no fake never answer.
func start(t testing.TB, dir string, cfg Config, fakes map[string]*fake) *bench {
	t.Helper()
	b := &bench{t: t, dir: dir, hits: map[Result]int{}}
	for name, text := range map[string]string{"hosts": "127.0.0.1 localhost\n", "resolv.conf": "nameserver 10.0.0.53\n"} {
		if _, err := os.Stat(b.path(name)); err != nil {
			writeFile(t, b.path(name), text)
		}
	}
	cfg.HostsFile, cfg.ResolvConf = b.path("hosts"), b.path("resolv.conf")
	cfg.OnEvent = func(e Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.seen = append(b.seen, string(e.Kind)+" "+strings.TrimPrefix(e.Subject, dir+"/"))
	}
	cfg.OnLookup = func(r Result) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.hits[r]++
	}
	r, err := newResolver(cfg, seams{
		open: func(spec exchange.Spec, _ exchange.Config) (exchange.Exchanger, error) {
			f := fakes[spec.Name]
			if f == nil {
				f = dead()
			}
			s := fakeServer{f, spec.Name, make(chan struct{}), new(sync.Once)}
			b.mu.Lock()
			defer b.mu.Unlock()
			b.opened = append(b.opened, s.closed)
			return s, nil
		},
		wall: func() time.Time {
			b.mu.Lock()
			defer b.mu.Unlock()
			return time.Now().Round(0).Add(b.ahead)
		},
		native: func() exchange.Exchanger { return newNative() },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Resolver = r
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = r.Close()
		for i, closed := range b.opened {
			select {
			case <-closed:
			default:
				t.Errorf("server %d was not closed", i)
			}
		}
	})
	return b
}

// bubble runs f on a fake clock with a Resolver over fakes.
func bubble(t *testing.T, cfg Config, fakes map[string]*fake, f func(t *testing.T, b *bench)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { f(t, start(t, dir, cfg, fakes)) })
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// want looks a name up and compares addresses and error.
func (b *bench) want(name, want string) Answer {
	b.t.Helper()
	a, err := b.Lookup(context.Background(), name)
	got := fmt.Sprint(a.Addrs)
	if err != nil {
		got = "error"
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
			got = "none"
		} else if ok && e.IsTimeout {
			got = "timeout"
		}
	}
	if got != want {
		b.t.Errorf("Lookup(%s) = %s (%v), want %s", name, got, err, want)
	}
	return a
}

// wantIn is want that also compares how long it took.
func (b *bench) wantIn(took time.Duration, name, want string) Answer {
	b.t.Helper()
	begun := time.Now()
	a := b.want(name, want)
	if got := time.Since(begun); got != took {
		b.t.Errorf("Lookup(%s) took %v, want %v", name, got, took)
	}
	return a
}

func (b *bench) wantQuestions(f *fake, want ...string) {
	b.t.Helper()
	got := f.questions()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.t.Errorf("asked %q, want %q", got, want)
	}
}

// all are the three questions of a lookup.
func all(name string) []string { return []string{name + " A", name + " AAAA", name + " HTTPS"} }

// pass lets time pass on the bubble's clock, and then what became due end.
func (b *bench) pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}
