// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
	"golang.org/x/net/http2"
)

func TestConfigIsChecked(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		ok   bool
	}{
		{"zero", Config{}, true},
		{"small window", Config{StreamWindow: 1 << 10}, true},
		{"negative window", Config{StreamWindow: -1}, false},
		{"limit too large", Config{MaxStreamWindow: 1 << 31}, false},
		{"negative streams", Config{MaxStreams: -1}, false},
		{"negative timeout", Config{SettingsTimeout: -1}, false},
	}
	for _, tt := range tests {
		client, server := netlab.Pipe(0)
		c, err := New(client, tt.cfg)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if c != nil {
			_ = c.Close()
		}
		_ = client.Close()
		_ = server.Close()
	}
}

// The first window is told by SETTINGS.
func TestFirstWindowIsTold(t *testing.T) {
	for window, want64 := range map[int]uint32{1000: 1000, 0: firstWindow} {
		bubble(t, Config{StreamWindow: window}, 0, common(), func(s *script) {
			var got uint32
			_ = want[*http2.SettingsFrame](s).ForeachSetting(func(v http2.Setting) error {
				if v.ID == http2.SettingInitialWindowSize {
					got = v.Val
				}
				return nil
			})
			if got != want64 {
				t.Errorf("initial window %d", got)
			}
		})
	}
}

// A CONNECT that is refused is an exchange like others, with a body that ends.
func TestRefusedConnect(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		pr, pw := io.Pipe()
		defer pw.Close()
		call := s.send(s.request(s.t.Context(), http.MethodConnect, pr))
		h := want[*http2.MetaHeadersFrame](s)
		if h.PseudoValue("path") != "" || h.PseudoValue("scheme") != "" || h.PseudoValue("authority") != "api.test" {
			t.Errorf("%v", h.PseudoFields())
		}
		s.fields(h.StreamID, false, ":status: 407", "content-length: 2")
		s.data(h.StreamID, true, "no")
		resp, err := call.wait()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "no" || err != nil || resp.ContentLength != 2 {
			t.Errorf("%q, %v, length %d", b, err, resp.ContentLength)
		}
		if r := want[*http2.RSTStreamFrame](s); r.ErrCode != http2.ErrCodeNo {
			t.Errorf("%v", r)
		}
		s.stillWorks()
	})
}

// A hook that refuses a 1xx ends the request with its error.
func TestHookRefusesInterim(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		refused := errors.New("refused")
		ctx := httptrace.WithClientTrace(s.t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { return refused },
		})
		call := s.get(ctx)
		id := want[*http2.MetaHeadersFrame](s).StreamID
		s.fields(id, false, ":status: 103")
		if _, err := call.wait(); !errors.Is(err, refused) {
			t.Errorf("err = %v", err)
		}
		if r := want[*http2.RSTStreamFrame](s); r.ErrCode != http2.ErrCodeCancel {
			t.Errorf("%v", r)
		}
		s.stillWorks()
	})
}

// WaitReady ends with its context, and LastReceived is the time of the last byte.
func TestReadyAndLastReceived(t *testing.T) {
	bubble(t, Config{SettingsTimeout: time.Hour}, 0, nil, func(s *script) {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		if err := s.c.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitReady = %v", err)
		}
		s.do(s.fr.WriteSettings())
		synctest.Wait()
		at := time.Now()
		s.pass(time.Minute)
		if got := s.c.LastReceived(); !got.Equal(at) {
			t.Errorf("LastReceived = %v, want %v", got, at)
		}
		if err := s.c.WaitReady(s.t.Context()); err != nil {
			t.Errorf("WaitReady = %v", err)
		}
	})
}
