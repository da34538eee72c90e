// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func wantReason(t *testing.T, err error, path string, want Reason) {
	t.Helper()
	e, ok := errors.AsType[*FileError](err)
	if !ok || e.Reason != want || e.Path != path {
		t.Errorf("error %v, want %s refused (%s)", err, path, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// savedFile is a file with the sessions "1" and "2" of hostKey.
func savedFile(t testing.TB) File {
	t.Helper()
	f := File{Path: filepath.Join(t.TempDir(), "sessions")}
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1", "2")
	must(t, s.Save(f))
	return f
}

func names(t *testing.T, f File) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(f.Path))
	must(t, err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestSessionsSurviveARestart(t *testing.T) {
	for _, key := range [][]byte{nil, bytes.Repeat([]byte{9}, keyBytes)} {
		t.Run(fmt.Sprintf("key of %d bytes", len(key)), func(t *testing.T) {
			f := File{Path: filepath.Join(t.TempDir(), "sessions"), Key: key}
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{})
				other := Key{ServerName: "b.example", QUIC: true, Client: "c", MinVersion: tls.VersionTLS13}
				put(t, s, other, tls.VersionTLS12, 0, "old")
				put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1", "2").Verified(time.Now().Add(10 * time.Minute))
				put(t, s, hostKey, tls.VersionTLS13, time.Hour, "3")
				must(t, s.Save(f))
				for _, path := range []string{f.Path, f.keyPath()} {
					if st, err := os.Stat(path); err == nil && st.Mode() != 0o600 || err != nil && (path == f.Path || key == nil) {
						t.Errorf("%v, %v", st.Mode(), err)
					}
				}
				time.Sleep(9 * time.Minute)

				next := New(Config{})
				must(t, next.Load(f))
				if _, err := os.Stat(f.Path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the file that was loaded is still there: %v", err)
				}
				wantTakes(t, next, hostKey, "3", "2")
				time.Sleep(time.Minute) // the verdict about "1" is over
				wantTakes(t, next, hostKey, "")
				wantTakes(t, next, other, "old", "old")

				third := New(Config{})
				must(t, third.Load(f)) // no file is no error
				wantTakes(t, third, hostKey, "")
			})
		})
	}
}

func TestNothingSecretIsReadableInTheFile(t *testing.T) {
	f := savedFile(t)
	b, err := os.ReadFile(f.Path)
	must(t, err)
	secret := bytes.Repeat([]byte{7}, 32) // of encodeSession
	for _, s := range []string{host, string(secret), "BwcHBwcHBwcHBwcH"} {
		if bytes.Contains(b, []byte(s)) {
			t.Errorf("the file has %q", s)
		}
	}
	if !bytes.HasPrefix(b, header()) {
		t.Errorf("the file begins %q", b[:40])
	}
}

func TestWhatIsInTheFileIsNotOfferedByThisProcess(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "sessions")}
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1", "2")
	must(t, s.Save(f))
	wantTakes(t, s, hostKey, "")
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "3")
	must(t, s.Save(f)) // writes all three again
	if st := s.State()[0]; st.Parked != 3 || st.Tickets != 0 {
		t.Errorf("state %+v", st)
	}
	next := New(Config{})
	must(t, next.Load(f))
	wantTakes(t, next, hostKey, "3", "2", "1", "")
}

func TestASpareTicketIsKeptForACrash(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "sessions")}
	s := New(Config{})
	one := Key{ServerName: "one.example"}
	put(t, s, one, tls.VersionTLS13, time.Hour, "only")
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1", "2", "3")
	must(t, s.SaveSpare(f))
	wantTakes(t, s, hostKey, "3", "1", "") // "2" is the spare
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "4", "5")
	must(t, s.SaveSpare(f)) // there is a spare already
	wantTakes(t, s, hostKey, "5", "4", "")
	wantTakes(t, s, one, "only", "")
	next := New(Config{})
	must(t, next.Load(f))
	wantTakes(t, next, hostKey, "2", "")
	wantTakes(t, next, one, "")
}

// A process that lives on while another loads its file must not write the same
// tickets into the file again.
func TestTicketsThatAnotherProcessTookAreForgotten(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "sessions")}
	first, second, third := New(Config{}), New(Config{}), New(Config{})
	put(t, first, hostKey, tls.VersionTLS13, time.Hour, "1")
	must(t, first.Save(f))
	must(t, second.Load(f))
	wantTakes(t, second, hostKey, "1")
	put(t, first, hostKey, tls.VersionTLS13, time.Hour, "2")
	must(t, first.Save(f))
	must(t, third.Load(f))
	wantTakes(t, third, hostKey, "2", "")

	// The same if the other one has written a file of its own since.
	put(t, first, hostKey, tls.VersionTLS13, time.Hour, "3")
	must(t, first.Save(f))
	must(t, second.Load(f))
	must(t, second.Save(f))
	must(t, first.Save(f))
	must(t, third.Load(f))
	wantTakes(t, third, hostKey, "")
}

func TestTwoWhoLoadAtOnceNeverGetTheSameTicket(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "sessions")}
	for round := range 30 {
		s := New(Config{})
		put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1")
		must(t, s.Save(f))
		stores := make([]*Store, 4)
		var wg sync.WaitGroup
		for i := range stores {
			stores[i] = New(Config{})
			wg.Go(func() {
				if err := stores[i].Load(f); err != nil {
					if e, ok := errors.AsType[*FileError](err); !ok || e.Reason != Busy {
						t.Errorf("load: %v", err)
					}
				}
				if i == 0 {
					if err := stores[i].Save(f); err != nil {
						t.Errorf("save: %v", err)
					}
				}
			})
		}
		wg.Wait()
		last := New(Config{})
		must(t, last.Load(f))
		got := 0
		for _, s := range append(stores, last) {
			if take(t, s.Handshake(hostKey)) != "" {
				got++
			}
		}
		if got > 1 {
			t.Fatalf("round %d: %d got the ticket", round, got)
		}
	}
}

func TestOneWhoSavesAgainWhileAnotherLoadsNeverSharesATicket(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "sessions")}
	for round := range 100 {
		first, second, third := New(Config{}), New(Config{}), New(Config{})
		put(t, first, hostKey, tls.VersionTLS13, time.Hour, "1")
		must(t, first.Save(f))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := second.Load(f); err != nil {
				wantReason(t, err, f.Path, Busy)
			}
		})
		wg.Go(func() {
			if err := first.Save(f); err != nil {
				t.Errorf("save: %v", err)
			}
		})
		wg.Wait()
		must(t, third.Load(f))
		if take(t, second.Handshake(hostKey)) != "" && take(t, third.Handshake(hostKey)) != "" {
			t.Fatalf("round %d: two processes got the ticket", round)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	edit := func(f File, change func([]byte) []byte) error {
		b, err := os.ReadFile(f.Path)
		if err != nil {
			return err
		}
		return os.WriteFile(f.Path, change(b), 0o600)
	}
	tests := []struct {
		name    string
		spoil   func(t *testing.T, f File) error
		reason  Reason
		keyFile bool // it is the key file that is refused
	}{
		{"empty", func(_ *testing.T, f File) error { return os.Truncate(f.Path, 0) }, OtherKind, false},
		{"another kind", func(_ *testing.T, f File) error { return os.WriteFile(f.Path, []byte("warmwire\nx"), 0o600) }, OtherKind, false},
		{"cut in the header", func(_ *testing.T, f File) error { return os.Truncate(f.Path, 12) }, OtherKind, false},
		{"cut", func(_ *testing.T, f File) error { return os.Truncate(f.Path, 300) }, Damaged, false},
		{"cut to its header", func(_ *testing.T, f File) error { return os.Truncate(f.Path, int64(len(header()))) }, Damaged, false},
		{"one bit changed", func(_ *testing.T, f File) error {
			return edit(f, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}, Damaged, false},
		{"more at the end", func(_ *testing.T, f File) error {
			return edit(f, func(b []byte) []byte { return append(b, 0) })
		}, Damaged, false},
		{"another Go", func(_ *testing.T, f File) error {
			return edit(f, func(b []byte) []byte { return bytes.Replace(b, []byte("go1."), []byte("go2."), 1) })
		}, Version, false},
		{"another format", func(_ *testing.T, f File) error {
			return edit(f, func(b []byte) []byte { return bytes.Replace(b, []byte("pool-1"), []byte("pool-9"), 1) })
		}, Version, false},
		{"another key", func(_ *testing.T, f File) error { return os.WriteFile(f.keyPath(), make([]byte, keyBytes), 0o600) }, Damaged, false},
		{"read by others", func(_ *testing.T, f File) error { return os.Chmod(f.Path, 0o604) }, TooOpen, false},
		{"written by the group", func(_ *testing.T, f File) error { return os.Chmod(f.Path, 0o620) }, TooOpen, false},
		{"a link", func(_ *testing.T, f File) error {
			return errors.Join(os.Rename(f.Path, f.Path+"2"), os.Symlink(f.Path+"2", f.Path))
		}, NotPlain, false},
		{"two names", func(_ *testing.T, f File) error { return os.Link(f.Path, f.Path+"2") }, NotPlain, false},
		{"a folder", func(_ *testing.T, f File) error { return errors.Join(os.Remove(f.Path), os.Mkdir(f.Path, 0o700)) }, NotPlain, false},
		{"a pipe", func(_ *testing.T, f File) error {
			return errors.Join(os.Remove(f.Path), syscall.Mkfifo(f.Path, 0o600))
		}, NotPlain, false},
		{"too long", func(_ *testing.T, f File) error { return os.Truncate(f.Path, maxFile+1) }, TooLong, false},
		{"another owner", func(t *testing.T, f File) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a file away")
			}
			return os.Chown(f.Path, 12345, -1)
		}, Owner, false},
		{"no key", func(_ *testing.T, f File) error { return os.Remove(f.keyPath()) }, NoKey, true},
		{"a short key", func(_ *testing.T, f File) error { return os.Truncate(f.keyPath(), 8) }, NoKey, true},
		{"a long key", func(_ *testing.T, f File) error { return os.Truncate(f.keyPath(), 33) }, TooLong, true},
		{"key read by others", func(_ *testing.T, f File) error { return os.Chmod(f.keyPath(), 0o640) }, TooOpen, true},
		{"key is a link", func(_ *testing.T, f File) error {
			return errors.Join(os.Rename(f.keyPath(), f.Path+"2"), os.Symlink(f.Path+"2", f.keyPath()))
		}, NotPlain, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := savedFile(t)
			must(t, tt.spoil(t, f))
			before := strings.Join(names(t, f), " ")
			path := f.Path
			if tt.keyFile {
				path = f.keyPath()
			}
			s := New(Config{})
			put(t, s, hostKey, tls.VersionTLS13, time.Hour, "mine")
			wantReason(t, s.Load(f), path, tt.reason)
			wantTakes(t, s, hostKey, "mine", "") // and nothing of the file
			if after := strings.Join(names(t, f), " "); after != before {
				t.Errorf("files %s, were %s", after, before)
			}
		})
	}
}

// A session that Go cannot read spoils the whole file, though its seal is good.
func TestAFileIsNeverHalfLoaded(t *testing.T) {
	now := time.Now()
	good := savedTicket{Label: []byte("1"), State: encodeSession(tls.VersionTLS13, now, now.Add(time.Hour)), Received: now, End: now.Add(time.Hour)}
	tests := []struct {
		name string
		bad  func(*savedTicket, *Key)
	}{
		{"a session that Go cannot read", func(s *savedTicket, _ *Key) { s.State = s.State[:20] }},
		{"no label", func(s *savedTicket, _ *Key) { s.Label = nil }},
		{"a life of eight days", func(s *savedTicket, _ *Key) { s.End = now.Add(8 * 24 * time.Hour) }},
		{"no name", func(_ *savedTicket, k *Key) { k.ServerName = "" }},
		{"a name in capitals", func(_ *savedTicket, k *Key) { k.ServerName = "A.example" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := File{Path: filepath.Join(t.TempDir(), "sessions"), Key: make([]byte, keyBytes)}
			bad, k := good, hostKey
			tt.bad(&bad, &k)
			body, err := json.Marshal(savedStore{Keys: []savedKey{{Key: hostKey, Tickets: []savedTicket{good}}, {Key: k, Tickets: []savedTicket{bad}}}})
			must(t, err)
			b, err := seal(f.Key, body)
			must(t, err)
			must(t, os.WriteFile(f.Path, b, 0o600))
			s := New(Config{})
			wantReason(t, s.Load(f), f.Path, Damaged)
			if n := len(s.State()); n != 0 {
				t.Errorf("%d keys loaded", n)
			}
		})
	}
}

func TestTicketsFromTheFutureAreNotLoaded(t *testing.T) {
	f := savedFile(t)
	s := New(Config{Now: func() time.Time { return time.Now().Add(-2 * time.Minute) }})
	must(t, s.Load(f))
	wantTakes(t, s, hostKey, "")
}

func TestSaveRefuses(t *testing.T) {
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "1")
	dir := t.TempDir()
	must(t, os.Symlink(dir+"/elsewhere", dir+"/link"))
	must(t, os.WriteFile(dir+"/open.key", make([]byte, keyBytes), 0o644))
	wantReason(t, s.Save(File{Path: dir + "/link"}), dir+"/link", NotPlain)
	wantReason(t, s.Save(File{Path: dir + "/open"}), dir+"/open.key", TooOpen)
	wantReason(t, s.Save(File{Path: dir + "/short", Key: []byte("x")}), dir+"/short", NoKey)
	if err := s.Save(File{Path: dir + "/none/file"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	wantTakes(t, s, hostKey, "1") // no failure cost a ticket
}

func TestASpoiledFileIsReplacedByTheNextSave(t *testing.T) {
	f := savedFile(t)
	must(t, os.Chmod(f.Path, 0o644))
	s := New(Config{})
	put(t, s, hostKey, tls.VersionTLS13, time.Hour, "3")
	must(t, s.Save(f))
	next := New(Config{})
	must(t, next.Load(f))
	wantTakes(t, next, hostKey, "3", "")
}

// diskFull is a process that may write files of 100 bytes only, and so meets an
// error in the middle of its Save.
func diskFull() int {
	signal.Ignore(syscall.SIGXFSZ)
	limit := syscall.Rlimit{Cur: 100, Max: 100}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		fmt.Println(err)
		return 1
	}
	s := New(Config{})
	h := s.Handshake(hostKey)
	state, _ := tls.ParseSessionState(encodeSession(tls.VersionTLS13, time.Now(), time.Now().Add(time.Hour)))
	cs, _ := tls.NewResumptionState([]byte("mine"), state)
	h.Put("", cs)
	err := s.Save(File{Path: os.Getenv(fileVariable)})
	if cs, ok := s.Handshake(hostKey).Get(""); !ok || cs == nil {
		fmt.Println("the ticket is lost")
		return 1
	}
	fmt.Println(err)
	return 0
}

func TestAFullDiskLeavesTheOldFileWhole(t *testing.T) {
	f := savedFile(t)
	before := strings.Join(names(t, f), " ")
	out := runChild(t, "diskFull", fileVariable+"="+f.Path)
	if out != "write session file: write: file too large" {
		t.Errorf("error %q", out)
	}
	if after := strings.Join(names(t, f), " "); after != before {
		t.Errorf("files %s, were %s", after, before)
	}
	s := New(Config{})
	must(t, s.Load(f))
	wantTakes(t, s, hostKey, "2", "1", "")
}

// runChild starts this binary again as the named child, and returns what it
// printed.
func runChild(t testing.TB, name string, env ...string) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(append(os.Environ(), childVariable+"="+name), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

func FuzzFile(f *testing.F) {
	key := make([]byte, keyBytes)
	now := time.Unix(1_800_000_000, 0)
	good, err := json.Marshal(savedStore{Keys: []savedKey{{Key: hostKey, Used: now, Tickets: []savedTicket{
		{Label: []byte("1"), State: encodeSession(tls.VersionTLS13, now, now.Add(time.Hour)), Received: now, End: now.Add(time.Hour), Verdict: &now},
	}}}})
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := seal(key, good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, false)
	f.Add(sealed, true)
	f.Add(header(), true)
	f.Add([]byte(`{"keys":[{"key":{"ServerName":"a"},"tickets":[{"label":"MQ=="}]}]}`), false)
	f.Fuzz(func(t *testing.T, b []byte, raw bool) {
		body := b
		if raw { // as it lies on the disk
			var err error
			if body, err = open("f", key, b); err != nil {
				if _, ok := errors.AsType[*FileError](err); !ok {
					t.Fatalf("an error of no kind: %v", err)
				}
				return
			}
		}
		saved, tickets, err := decode("f", body)
		if err != nil {
			return
		}
		s := New(Config{MaxKeys: 4, Now: func() time.Time { return now }})
		s.add(saved, tickets)
		total := 0
		for _, st := range s.State() {
			total += st.Bytes
			if st.Key.ServerName == "" || st.Tickets > 8 || st.LongestLeft > maxLife+time.Second+maxAhead {
				t.Errorf("state %+v", st)
			}
		}
		if total != s.bytes {
			t.Errorf("%d bytes, counted %d", total, s.bytes)
		}
		if _, _, err := s.park((*entry).parkAll); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}
