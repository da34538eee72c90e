// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strings"
	"testing"
	"time"
)

// TestCommentsKeepASilentStreamAlive looks where comments stand in what an app gets.
func TestCommentsKeepASilentStreamAlive(t *testing.T) {
	const every = 50 * time.Millisecond
	silence := func() { // long enough for several
		timer := time.NewTimer(4 * every)
		defer timer.Stop()
		<-timer.C
	}
	for _, tt := range []struct {
		name  string
		parts []string // of the answer, with silence between them
		want  []bool   // whether comments are in that silence
	}{
		{"between events", []string{"data: {\"choices\":[]}\n\n", "data: [DONE]\n\n"}, []bool{true}},
		{"before the first", []string{"", "data: x\n\n"}, []bool{true}},
		{"not inside an event", []string{"data: {\"ch", "oices\":[]}\n\n"}, []bool{false}},
		{"not between its lines", []string{"event: x\n", "data: x\n\n"}, []bool{false}},
		{"not after the end", []string{"data: [DONE]\n\n", ""}, []bool{false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newProvider(t, -1)
			r := newRig(t, p.addr(), func(_ *Table, u *Upstream) { u.Comments = every })
			app := &caller{Raw: r.dial()}
			app.Send("POST /up/v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
			app.answered()
			for i, part := range tt.parts {
				if i > 0 {
					silence()
				}
				if part != "" {
					p.give <- []byte(part)
				}
			}
			close(p.give)
			got, err := app.body()
			if err != nil {
				t.Fatal(err)
			}
			if plain := strings.ReplaceAll(string(got), comment, ""); plain != strings.Join(tt.parts, "") {
				t.Errorf("without comments it is %q", plain)
			}
			// Where all ends with an event a slow machine may have one before the first part, or
			// behind the last.
			found := !strings.Contains(string(got), strings.Join(tt.parts, "")) || strings.HasSuffix(string(got), "[DONE]\n\n"+comment)
			if tt.parts[0] == "" {
				found = strings.HasPrefix(string(got), comment)
			}
			if found != tt.want[0] {
				t.Errorf("comments: %v, want %v: %q", found, tt.want[0], got)
			}
			if n := len(got); r.record().BytesOut != int64(n) {
				t.Errorf("%d bytes came, another number was recorded", n)
			}
		})
	}
}

// TestOnlyEventStreamsGetComments leaves everything else alone.
func TestOnlyEventStreamsGetComments(t *testing.T) {
	p := newProvider(t, 2)
	r := newRig(t, p.addr(), func(_ *Table, u *Upstream) { u.Comments = 20 * time.Millisecond })
	app := &caller{Raw: r.dial()}
	app.Send("POST /up/v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
	app.answered()
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	p.give <- []byte("ok")
	if got, err := app.body(); err != nil || string(got) != "ok" {
		t.Errorf("%q, %v", got, err)
	}
}
