// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
)

// TestWhatIsShown sends every kind of frame both ways: only the upstream's messages of
// one plain small frame are shown, in their order, and all of them arrive.
func TestWhatIsShown(t *testing.T) {
	most := strings.Repeat("m", maxShown)
	tests := []struct {
		name       string
		extensions []string
		want       []string
	}{
		{"plain", nil, []string{"text", "binary", "", most, "behind"}},
		{"compression agreed on", []string{"permessage-deflate; server_no_context_takeover"}, []string{"text", "binary", "", most, "behind"}},
		{"an extension nobody knows", []string{"x-unknown"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var shown []string
			synctest.Test(t, play(func(_, _ *Leg, cfg *Config) {
				cfg.Extensions = tt.extensions
				cfg.Show = func(message []byte) { shown = append(shown, string(message)) }
			}, func(s *scene) {
				sent := []frame{
					{0x81, "text"}, {0x82, "binary"}, {0x81, ""}, {0x01, "frag"}, {0x80, "ment"}, {0x81, most}, {0x82, most + "m"}, {0x81, "behind"},
				}
				if tt.extensions != nil {
					sent = append(sent, frame{0xc1, "compressed"})
				}
				go func() {
					for _, f := range sent {
						s.up.send(f.first, f.payload)
					}
				}()
				for _, f := range sent {
					s.app.want(f.first, f.payload)
				}
				go s.app.send(0x81, "from the app")
				s.up.want(0x81, "from the app")
			}))
			if !slices.Equal(shown, tt.want) {
				t.Errorf("shown %.60q, want %.60q", shown, tt.want)
			}
		})
	}
}

// TestWhatIsShownWhileTheAppIsStuck: the look is taken when a message comes, not when
// it can be passed on.
func TestWhatIsShownWhileTheAppIsStuck(t *testing.T) {
	var last string
	synctest.Test(t, play(func(_, _ *Leg, cfg *Config) {
		cfg.Show = func(message []byte) { last = string(message) }
	}, func(s *scene) {
		for i := range 20 { // nobody reads them; the pipe holds none
			s.up.send(0x81, fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if last != "19" {
			s.app.t.Errorf("the last one shown is %q", last)
		}
	}))
}

// BenchmarkShow lets an upstream send messages as fast as they are taken: what one
// costs without anybody to look, with a function that does nothing, and with the one
// that reads what servers say of their sessions.
func BenchmarkShow(b *testing.B) {
	shows := []struct {
		name string
		show func([]byte)
	}{
		{"nobody", nil},
		{"looked at", func([]byte) {}},
		{"read", func(message []byte) { dialect.GeminiLive.Read(message) }},
		{"nobody again", nil},
	}
	for _, size := range []int{120, 2000} {
		message := `{"serverContent":{"modelTurn":{"parts":[{"text":"` + strings.Repeat("x", size-57) + `"}]}}}`
		batch := []byte(strings.Repeat(string(frame{0x82, message}.bytes(false)), 64<<10/size))
		for _, s := range shows {
			b.Run(fmt.Sprintf("%d/%s", size, s.name), func(b *testing.B) {
				app, up, end := joined(b, joiner{s.name, func(t testing.TB, app, up net.Conn) {
					r, err := New(Leg{Conn: app}, Leg{Conn: up}, Config{Stall: time.Minute, Show: s.show})
					if err != nil {
						t.Error(err)
						return
					}
					r.Run(context.Background())
				}})
				defer end()
				buf := make([]byte, len(batch))
				frames := 0
				b.ReportAllocs()
				spent := cpu()
				for b.Loop() {
					if _, err := up.Write(batch); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(app, buf); err != nil {
						b.Fatal(err)
					}
					frames += 64 << 10 / size
				}
				b.ReportMetric(float64(cpu()-spent)/float64(frames), "cpu-ns/frame")
			})
		}
	}
}
