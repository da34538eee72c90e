// SPDX-License-Identifier: Apache-2.0

//go:build unix

package accesslog_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/accesslog"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRotation: whoever rotates the log moves the file and asks for a reload. No
// line is lost or cut, and the old file is let go.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	if err := os.WriteFile(path, []byte("from before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := accesslog.Config{Sample: 1, File: path}
	r := start(t, cfg)
	const files, each = 20, 50
	for n := range uint64(files) {
		for id := range uint64(each) {
			r.Record(well(n*each + id))
		}
		if err := os.Rename(path, path+"."+string(rune('a'+n))); err != nil {
			t.Fatal(err)
		}
		if err := r.Update(cfg); err != nil {
			t.Fatal(err)
		}
		if err := r.Update(cfg); err != nil { // and once more, before the writer has come to the first
			t.Fatal(err)
		}
	}
	if out := r.end(); out != "" {
		t.Errorf("lines beside the file: %s", out)
	}
	all := readFile(t, path)
	for n := range files {
		all += readFile(t, path+"."+string(rune('a'+n)))
	}
	if got := strings.Count(all, "\n"); got != files*each+1 || r.Dropped() != 0 {
		t.Errorf("%d lines of %d and the one before, dropped %d", got, files*each, r.Dropped())
	}
	for line := range strings.Lines(all) {
		if line != "from before\n" && (!strings.HasPrefix(line, "time=") || !strings.HasSuffix(line, " duration_ms=0\n")) {
			t.Errorf("cut: %q", line)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a new file is %v, %v; want one for its owner only", info.Mode(), err)
	}
	if runtime.GOOS == "linux" {
		for _, fd := range openFiles(t) {
			if strings.HasPrefix(fd, path) {
				t.Errorf("still open: %s", fd)
			}
		}
	}
}

func openFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			out = append(out, to)
		}
	}
	return out
}

// TestARealFullDisk is /dev/full, which takes nothing; a file elsewhere gets what
// it did not take.
func TestARealFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	path := filepath.Join(t.TempDir(), "access.log")
	r := start(t, accesslog.Config{Sample: 1, File: "/dev/full"})
	for id := range uint64(200) {
		r.Record(well(id))
	}
	until(t, "the error", func() bool { return r.notes.count("no space left") == 1 })
	if err := r.Update(accesslog.Config{Sample: 1, File: path}); err != nil {
		t.Fatal(err)
	}
	r.end()
	if got := strings.Count(readFile(t, path), "\n"); got != 200 || r.Dropped() != 0 || r.notes.count("written again") != 1 {
		t.Errorf("%d lines of 200, dropped %d:\n%s", got, r.Dropped(), r.notes)
	}
}

// TestAPipeWhoseReaderLeft: its lines wait for the next reader.
func TestAPipeWhoseReaderLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := accesslog.Config{Sample: 1, File: path}
	if _, err := accesslog.New(nil, nil, cfg); !errors.Is(err, syscall.ENXIO) {
		t.Fatalf("a pipe without a reader: %v, want ENXIO at once", err)
	}
	reader := openPipe(t, path)
	r := start(t, cfg)
	r.Record(well(1))
	expectID(t, reader, "id=1 ")
	_ = reader.Close()
	r.Record(well(2))
	until(t, "the error", func() bool { return r.notes.count("broken pipe") == 1 })
	reader = openPipe(t, path)
	defer reader.Close()
	expectID(t, reader, "id=2 ")
	r.Record(well(3))
	expectID(t, reader, "id=3 ")
	r.end()
	if r.Dropped() != 0 || r.notes.count("written again") != 1 {
		t.Errorf("dropped %d:\n%s", r.Dropped(), r.notes)
	}
}

// openPipe does not wait for the writer.
func openPipe(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.SetReadDeadline(time.Now().Add(patience))
	return f
}

// expectID reads one line; a pipe that has no writer for the moment is empty, not
// at its end.
func expectID(t *testing.T, f *os.File, want string) {
	t.Helper()
	var line string
	until(t, want, func() bool {
		got, _ := bufio.NewReader(f).ReadString('\n')
		line += got
		return strings.HasSuffix(line, "\n")
	})
	if !strings.Contains(line, want) || strings.Count(line, "\n") != 1 {
		t.Errorf("read %q, want one line with %q", line, want)
	}
}

// fillPipe runs a log to a pipe that is not read, until pipe and ring are full.
func fillPipe(t *testing.T, cfg accesslog.Config) (r *run, sent int, reader *os.File) {
	t.Helper()
	cfg.File = filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(cfg.File, 0o600); err != nil {
		t.Fatal(err)
	}
	reader = openPipe(t, cfg.File)
	t.Cleanup(func() { _ = reader.Close() })
	r = start(t, cfg)
	still := 0
	until(t, "a full pipe and a full ring", func() bool {
		before := r.Dropped()
		for id := range uint64(100) {
			r.Record(well(id))
		}
		sent += 100
		if still++; r.Dropped() != before+100 {
			still = 0
		}
		return still == 20
	})
	return r, sent, reader
}

// TestAPipeThatIsNotRead fills up; then records are dropped and counted, and the
// end does not wait for its reader.
func TestAPipeThatIsNotRead(t *testing.T) {
	r, sent, _ := fillPipe(t, accesslog.Config{Sample: 1, FlushTimeout: 10 * time.Millisecond, Capacity: 100})
	before := r.Dropped()
	r.stop()
	if err := <-r.ended; !errors.Is(err, accesslog.ErrFlush) {
		t.Errorf("Run = %v, want ErrFlush", err)
	}
	until(t, "the write is broken off and the rest counted", func() bool { return r.Dropped() >= before+100 })
	if r.Dropped() >= uint64(sent) {
		t.Errorf("dropped %d of %d", r.Dropped(), sent)
	}
}

// TestAFileInsteadOfAPipeThatIsNotRead gets what the pipe did not take: all of it is
// in one of them, once, or counted.
func TestAFileInsteadOfAPipeThatIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	r, sent, reader := fillPipe(t, accesslog.Config{Sample: 1, Capacity: 100})
	if err := r.Update(accesslog.Config{Sample: 1, File: path}); err != nil {
		t.Fatal(err)
	}
	until(t, "the file has lines", func() bool { return r.notes.count("written again") == 1 })
	r.end()
	piped, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	inFile, inPipe := strings.Count(readFile(t, path), "\n"), strings.Count(string(piped), "\n")
	if inFile < 100 || inPipe == 0 || inFile+inPipe+int(r.Dropped()) != sent {
		t.Errorf("%d lines in the file, %d in the pipe, dropped %d: want %d in all", inFile, inPipe, r.Dropped(), sent)
	}
}
