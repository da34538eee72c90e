// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// put stores sessions with the given labels, all of one connection.
func put(t testing.TB, s *Store, k Key, version uint16, life time.Duration, labels ...string) *Handshake {
	t.Helper()
	h := s.Handshake(k)
	for _, label := range labels {
		now := s.cfg.Now()
		h.Put("ignored", madeSession(t, version, label, now, now.Add(life)))
	}
	return h
}

// take returns the label of the ticket that a new handshake gets, "" for none.
func take(t testing.TB, h *Handshake) string {
	t.Helper()
	cs, ok := h.Get("whatever")
	if ok != (cs != nil) || ok != h.Offered() {
		t.Fatalf("Get = %v, %v; offered %v", cs, ok, h.Offered())
	}
	label, _, _ := cs.ResumptionState()
	return string(label)
}

func wantTakes(t testing.TB, s *Store, k Key, labels ...string) {
	t.Helper()
	for i, want := range labels {
		if got := take(t, s.Handshake(k)); got != want {
			t.Fatalf("handshake %d takes %q, want %q", i+1, got, want)
		}
	}
}

func TestTicketsAreTakenOnceNewestFirst(t *testing.T) {
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1", "2", "3")
	wantTakes(t, s, hostKey, "3", "2", "1", "", "")
}

func TestASessionOfTLS12IsTakenAgainUntilANewerOneComes(t *testing.T) {
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS12, 0, "1")
	wantTakes(t, s, hostKey, "1", "1")
	put(t, s, hostKey, tls.VersionTLS12, 0, "2")
	wantTakes(t, s, hostKey, "2", "2")
	h := s.Handshake(hostKey)
	take(t, h)
	h.Put("", nil)
	wantTakes(t, s, hostKey, "")
}

func TestNothingIsSharedBetweenKeys(t *testing.T) {
	others := []Key{
		{ServerName: "b.example", Port: "443", Protocols: "http/1.1", Trust: "t"},
		{ServerName: host, Port: "444", Protocols: "http/1.1", Trust: "t"},
		{ServerName: host, Port: "443", Protocols: "h2", Trust: "t"},
		{ServerName: host, Port: "443", Protocols: "http/1.1", Trust: "t", QUIC: true},
		{ServerName: host, Port: "443", Protocols: "http/1.1", Trust: "u"},
		{ServerName: host, Port: "443", Protocols: "http/1.1", Trust: "t", Client: "c"},
		{ServerName: host, Port: "443", Protocols: "http/1.1", Trust: "t", MinVersion: tls.VersionTLS13},
	}
	for _, k := range others {
		t.Run(fmt.Sprintf("%+v", k), func(t *testing.T) {
			s := New(Config{})
			put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1")
			wantTakes(t, s, k, "")
			wantTakes(t, s, hostKey, "1")
		})
	}
	t.Run("case of letters is no difference", func(t *testing.T) {
		s := New(Config{})
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1")
		upper := hostKey
		upper.ServerName = "A.Example"
		wantTakes(t, s, upper, "1")
	})
	t.Run("without a name nothing is kept", func(t *testing.T) {
		s := New(Config{})
		put(t, s, Key{Port: "443"}, tls.VersionTLS13, time.Hour, "1")
		wantTakes(t, s, Key{Port: "443"}, "")
	})
}

func TestTicketsEnd(t *testing.T) {
	tests := []struct {
		name    string
		version uint16
		life    time.Duration
		verdict time.Duration // 0: none
		want    time.Duration
	}{
		{"by the server's lifetime", tls.VersionTLS13, 5 * time.Minute, 0, 5 * time.Minute},
		{"by the verdict", tls.VersionTLS13, 5 * time.Minute, time.Minute, time.Minute},
		{"not by a longer verdict", tls.VersionTLS13, 5 * time.Minute, time.Hour, 5 * time.Minute},
		{"TLS 1.2 by a day", tls.VersionTLS12, 0, 0, 24 * time.Hour},
		{"TLS 1.2 by the verdict", tls.VersionTLS12, 0, time.Hour, time.Hour},
	}
	for _, tt := range tests {
		for _, early := range []time.Duration{1, 0} {
			t.Run(fmt.Sprintf("%s %v", tt.name, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := New(Config{})
					h := put(t, s, hostKey, tt.version, tt.life, "1")
					if tt.verdict > 0 {
						h.Verified(time.Now().Add(tt.verdict))
					}
					time.Sleep(tt.want - early)
					want := ""
					if early > 0 {
						want = "1"
					}
					wantTakes(t, s, hostKey, want)
				})
			})
		}
	}
}

func TestAnUnknownEncodingLivesAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		// Eight days: not the life of a ticket, so the bytes are not trusted.
		put(t, s, hostKey, tls.VersionTLS13, 8*24*time.Hour, "1", "2")
		time.Sleep(time.Hour - 1)
		wantTakes(t, s, hostKey, "2")
		time.Sleep(time.Nanosecond)
		wantTakes(t, s, hostKey, "")
	})
}

func TestAResumedConnectionInheritsTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1").Verified(time.Now().Add(10 * time.Minute))
		for _, label := range []string{"2", "3", "4"} { // resume, get another ticket, and so on
			time.Sleep(3 * time.Minute)
			h := s.Handshake(hostKey)
			if take(t, h) == "" {
				t.Fatalf("no ticket before %s", label)
			}
			h.Done(true)
			h.Put("", madeSession(t, tls.VersionTLS13, label, time.Now(), time.Now().Add(time.Hour)))
		}
		time.Sleep(time.Minute) // ten minutes after the verdict
		wantTakes(t, s, hostKey, "")
	})
}

func TestAFullHandshakeHasItsOwnVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1").Verified(time.Now().Add(time.Minute))
		h := s.Handshake(hostKey)
		take(t, h)
		h.Done(false) // the server refused the ticket
		h.Put("", madeSession(t, tls.VersionTLS13, "2", time.Now(), time.Now().Add(time.Hour)))
		time.Sleep(2 * time.Minute)
		wantTakes(t, s, hostKey, "2")
		if c := s.State()[0].Counts; c.Refused != 1 || c.Full != 1 || c.Resumed != 0 {
			t.Errorf("counts %+v", c)
		}
	})
}

func TestAfterAFailureTheNextHandshakeIsFullOnce(t *testing.T) {
	s := New(Config{MaxTickets: 1000})
	var labels []string
	for i := range 600 {
		labels = append(labels, fmt.Sprint(i))
	}
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, labels...)
	for _, full := range []int{1, 2, 4, 8, 16, 32, 64, 64} {
		h := s.Handshake(hostKey)
		if take(t, h) == "" {
			t.Fatalf("no ticket before the failure that makes %d full", full)
		}
		h.Put("", nil) // as crypto/tls does
		h.Failed(errors.New("remote error: tls: decrypt error"))
		wantTakes(t, s, hostKey, make([]string, full)...)
	}
	h := s.Handshake(hostKey)
	take(t, h)
	h.Done(true) // it works again
	h = s.Handshake(hostKey)
	take(t, h)
	h.Failed(errors.New("reset"))
	wantTakes(t, s, hostKey, "")
	if take(t, s.Handshake(hostKey)) == "" {
		t.Error("a second full handshake after the first failure since a resumption")
	}
}

func TestACancelledHandshake(t *testing.T) {
	cancelled := fmt.Errorf("handshake: %w", context.Canceled)
	tests := []struct {
		name    string
		version uint16
		end     func(*Handshake)
		next    string
	}{
		{"may have sent its ticket", tls.VersionTLS13, func(h *Handshake) { h.Failed(cancelled) }, "1"},
		{"sent nothing", tls.VersionTLS13, func(h *Handshake) { h.Unsent() }, "2"},
		{"with a session that may be used again", tls.VersionTLS12, func(h *Handshake) { h.Failed(cancelled) }, "2"},
		{"whose ECH was rejected", tls.VersionTLS13, func(h *Handshake) { h.Failed(&tls.ECHRejectionError{}) }, "1"},
		{"ran out of time", tls.VersionTLS13, func(h *Handshake) { h.Failed(context.DeadlineExceeded) }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Config{})
			put(t, s, hostKey, tt.version, time.Hour, "1", "2")
			h := s.Handshake(hostKey)
			take(t, h)
			h.Put("", nil) // as crypto/tls does
			tt.end(h)
			wantTakes(t, s, hostKey, tt.next)
		})
	}
}

func TestATicketGivenBackKeepsItsPlace(t *testing.T) {
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1")
	h := s.Handshake(hostKey)
	take(t, h)
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "2")
	h.Put("", nil)
	h.Unsent()
	h.Unsent() // a second call does nothing
	wantTakes(t, s, hostKey, "2", "1", "")
	if s.bytes != 0 {
		t.Errorf("%d bytes in an empty store", s.bytes)
	}
}

func TestBounds(t *testing.T) {
	key := func(i int) Key { return Key{ServerName: fmt.Sprint(i)} }
	t.Run("tickets of a key", func(t *testing.T) {
		s := New(Config{MaxTickets: 2})
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1", "2", "3")
		wantTakes(t, s, hostKey, "3", "2", "")
	})
	t.Run("keys, the least recently used leaves", func(t *testing.T) {
		s := New(Config{MaxKeys: 2})
		put(t, s, key(1), tls.VersionTLS13, time.Hour, "a", "b")
		put(t, s, key(2), tls.VersionTLS13, time.Hour, "c")
		wantTakes(t, s, key(1), "b")
		put(t, s, key(3), tls.VersionTLS13, time.Hour, "d")
		wantTakes(t, s, key(2), "")
		wantTakes(t, s, key(1), "a")
		wantTakes(t, s, key(3), "d")
	})
	t.Run("bytes", func(t *testing.T) {
		one := len(encodeSession(tls.VersionTLS13, time.Now(), time.Now())) + 1
		s := New(Config{MaxBytes: 3*one + 1})
		put(t, s, key(1), tls.VersionTLS13, time.Hour, "a")
		put(t, s, key(2), tls.VersionTLS13, time.Hour, "b", "c", "d")
		wantTakes(t, s, key(1), "")
		put(t, s, key(2), tls.VersionTLS13, time.Hour, "e")
		wantTakes(t, s, key(2), "e", "d", "c", "")
		if s.bytes != 0 {
			t.Errorf("%d bytes in an empty store", s.bytes)
		}
	})
	t.Run("a ticket too long", func(t *testing.T) {
		s := New(Config{})
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, string(make([]byte, maxTicket)))
		wantTakes(t, s, hostKey, "")
	})
}

func TestExpiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		short, long, none := Key{ServerName: "short"}, Key{ServerName: "long"}, Key{ServerName: "none"}
		put(t, s, short, tls.VersionTLS13, 10*time.Minute, "1")
		put(t, s, long, tls.VersionTLS13, 5*time.Hour, "1", "2")
		put(t, s, none, tls.VersionTLS13, time.Hour, "1")
		for _, k := range []Key{none, short, long} {
			if k != short {
				take(t, s.Handshake(k))
			}
		}
		want := func(after string, keys ...Key) {
			t.Helper()
			if got := s.Expiring(time.Now(), 0.2); !slices.Equal(got, keys) {
				t.Errorf("after %s: %+v, want %+v", after, got, keys)
			}
		}
		want("nothing")
		time.Sleep(8 * time.Minute)
		want("8m")
		time.Sleep(time.Nanosecond)
		want("8m and a moment", short)
		// A refresh is no use: the key is left alone an hour after its last one.
		for range 5 {
			h := s.Refresh(short)
			if take(t, h) == "" {
				t.Fatal("a refresh may resume")
			}
			h.Done(true)
			h.Put("", madeSession(t, tls.VersionTLS13, "n", time.Now(), time.Now().Add(10*time.Minute)))
			want("a refresh")
			time.Sleep(9 * time.Minute)
			want("9m more", short)
		}
		time.Sleep(7 * time.Minute) // the hour is over
		want("an hour")
		time.Sleep(3 * time.Hour)
		want("over four hours", long)
		time.Sleep(time.Hour)
		want("over five hours")
	})
}

func TestARefreshRenewsTheVerdictByAFullHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1").Verified(time.Now().Add(10 * time.Minute))
		time.Sleep(9 * time.Minute)
		if got := s.Expiring(time.Now(), 0.2); len(got) != 1 {
			t.Fatalf("expiring %+v", got)
		}
		if got := take(t, s.Refresh(hostKey)); got != "" {
			t.Errorf("the refresh takes %q: what it brings would end as early", got)
		}
		wantTakes(t, s, hostKey, "1")
	})
}

func TestStateAndFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		other := Key{ServerName: "b.example"}
		put(t, s, other, tls.VersionTLS12, 0, "1")
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1")
		time.Sleep(time.Minute)
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "2")
		time.Sleep(time.Minute)
		st := s.State()
		if len(st) != 2 || st[0].Key != hostKey || st[1].Key != other {
			t.Fatalf("state %+v", st)
		}
		got := st[0]
		if got.Tickets != 2 || got.NewestAge != time.Minute || got.OldestAge != 2*time.Minute ||
			got.LongestLeft != 59*time.Minute || got.ShortestLeft != 58*time.Minute || got.Counts.Stored != 2 || got.Bytes == 0 {
			t.Errorf("state %+v", got)
		}
		time.Sleep(58 * time.Minute)
		if got := s.State()[0]; got.Tickets != 1 || got.ShortestLeft != time.Minute || got.Parked != 0 {
			t.Errorf("state once a ticket has ended: %+v", got)
		}
		if n := s.Flush("A.EXAMPLE"); n != 2 {
			t.Errorf("flushed %d, want 2", n)
		}
		wantTakes(t, s, hostKey, "")
		wantTakes(t, s, other, "1")
		if n := s.Flush(""); n != 1 || s.bytes != 0 {
			t.Errorf("flushed %d, want 1; %d bytes left", n, s.bytes)
		}
	})
}

// Every ticket that goes in comes out at most once, whatever happens at once.
func TestManyAtOnce(t *testing.T) {
	s := New(Config{MaxKeys: 3, MaxTickets: 4})
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				k := Key{ServerName: fmt.Sprint((w + i) % 5)}
				h := s.Handshake(k)
				if cs, ok := h.Get(""); ok {
					label, _, _ := cs.ResumptionState()
					mu.Lock()
					if seen[string(label)] {
						t.Errorf("%s taken twice", label)
					}
					seen[string(label)] = true
					mu.Unlock()
				}
				switch i % 5 {
				case 0:
					h.Put("", nil)
					h.Failed(errors.New("reset"))
				default:
					h.Done(h.Offered())
					h.Verified(time.Now().Add(time.Minute))
				}
				h.Put("", madeSession(t, tls.VersionTLS13, fmt.Sprint(w, i), time.Now(), time.Now().Add(time.Hour)))
				s.State()
				s.Expiring(time.Now(), 0.5)
				if i%50 == 0 {
					s.Flush(k.ServerName)
				}
			}
		})
	}
	wg.Wait()
	if len(seen) == 0 {
		t.Error("no ticket was taken")
	}
}
