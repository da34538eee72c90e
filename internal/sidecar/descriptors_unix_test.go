// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sidecar_test

import (
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
	"golang.org/x/sys/unix"
)

// TestDescriptorsAreKeptForTheWayOut opens more connections than there are descriptors
// for: those over the limit get an answer, and the others still reach their upstream.
func TestDescriptorsAreKeptForTheWayOut(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	addr, _ := answering(t, okAnswer)
	low := before
	low.Cur = 256
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	r := start(t, addr, "")
	// The apps live in this process as well, and need descriptors of their own.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	const room = (256 - 64) / 2
	var apps []*testenv.Raw
	for range room {
		app := r.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
			t.Fatalf("connection %d of %d: %q", len(apps)+1, room, head)
		}
		app.Expect("ok")
		apps = append(apps, app)
	}
	over := r.dial()
	if head := over.Head(); !strings.HasPrefix(head, "HTTP/1.1 503 ") || !strings.Contains(head, "Retry-After: 1\n") {
		t.Errorf("one too many: %q", head)
	}
	apps[0].Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	if head := apps[0].Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Errorf("an app that is in: %q", head)
	}
	if r.get("/healthz") == "" {
		t.Error("the admin listener does not answer")
	}
	if n := strings.Count(r.log.String(), `level=WARN msg="limits.connections is more than the file descriptors`); n != 1 {
		t.Errorf("%d warnings: %s", n, r.log)
	}
}
