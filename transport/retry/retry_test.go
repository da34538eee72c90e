// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/retry"
)

// all is a configuration in which everything that can be named is named.
func all(d *decisions) retry.Config {
	return retry.Config{Statuses: []int{429, 500, 503, 529}, Resets: true, OnAttempt: d.note}
}

func TestWhatIsTriedAgain(t *testing.T) {
	ok := answers(200, "fine")
	type step = func() (*http.Response, error)
	tests := []struct {
		name    string
		first   step
		byDeflt string // verdict of the default configuration; "" = none was needed
		named   string // verdict where all is named
	}{
		{"connection refused", fails(errRefusedConn), "unsent retried", "unsent retried"},
		{"closed before the first byte was written", fails(&fault{phase: "send", code: "upstream_closed"}), "unsent retried", "unsent retried"},
		{"refused stream", fails(errRefusedStream), "refused retried", "refused retried"},
		{"connect timed out", fails(&fault{phase: "connect", code: "upstream_connect_timeout", expired: true}), "late disabled", "late disabled"},
		{"TLS reset", fails(&fault{phase: "tls", code: "upstream_tls_failed"}), "unsent retried", "unsent retried"},
		{"certificate refused", fails(&fault{phase: "tls", code: "upstream_tls_untrusted"}), "hopeless disabled", "hopeless disabled"},
		{"no such name", fails(&fault{phase: "dns", code: "upstream_dns_failed", err: &net.DNSError{IsNotFound: true}}), "hopeless disabled", "hopeless disabled"},
		{"resolver failed", fails(&fault{phase: "dns", code: "upstream_dns_failed", err: &net.DNSError{}}), "unsent retried", "unsent retried"},
		{"address refused by us", fails(&fault{phase: "connect", code: "target_denied"}), "hopeless disabled", "hopeless disabled"},
		{"queue full", fails(&fault{phase: "queue", code: "upstream_queue_full"}), "hopeless disabled", "hopeless disabled"},
		{"request that cannot be sent", fails(&fault{phase: "send", code: "upstream_bad_response"}), "hopeless disabled", "hopeless disabled"},
		{"reset after the request", fails(errCut), "cut_before disabled", "cut_before retried"},
		{"closed after the request", fails(&fault{phase: "wait", code: "upstream_closed", sent: true}), "cut_before disabled", "cut_before retried"},
		{"no answer in time", fails(&fault{phase: "wait", code: "upstream_response_header_timeout", expired: true, sent: true}), "late disabled", "late disabled"},
		{"malformed answer", fails(&fault{phase: "wait", code: "upstream_bad_response", sent: true}), "unknown disabled", "unknown disabled"},
		{"plain reset of a plain way out", fails(syscall.ECONNRESET), "cut_before disabled", "cut_before retried"},
		{"an error that says nothing", fails(errors.New("no")), "unknown disabled", "unknown disabled"},
		{"429 with a hint", answers(429, "", "Retry-After", "1"), "try_later disabled", "try_later retried"},
		{"429 without", answers(429, ""), "answered disabled", "answered retried"},
		{"503 with a hint", answers(503, "", "Retry-After-Ms", "10"), "try_later disabled", "try_later retried"},
		{"529 that should be tried again", answers(529, "", "X-Should-Retry", "true"), "try_later disabled", "try_later retried"},
		{"529 that should not", answers(529, "", "X-Should-Retry", "false"), "answered disabled", "answered forbidden"},
		{"500 with a hint", answers(500, "", "Retry-After", "1"), "answered disabled", "answered retried"},
		{"502 not named, that should be tried again", answers(502, "", "X-Should-Retry", "true"), "answered disabled", "answered disabled"},
		{"504 not named", answers(504, ""), "answered disabled", "answered disabled"},
		{"408 not named", answers(408, ""), "", ""},
		{"404", answers(404, ""), "", ""},
	}
	for _, tt := range tests {
		for _, named := range []bool{false, true} {
			want, cfg, d := tt.byDeflt, retry.Config{}, &decisions{}
			if named {
				want, cfg = tt.named, all(d)
			}
			cfg.OnAttempt = d.note
			t.Run(tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &script{steps: []step{tt.first, ok}}
					tr := newTransport(t, s, cfg)
					resp, err := tr.RoundTrip(post("question"))
					again := strings.HasSuffix(want, " retried")
					if got := strings.Join(d.verdicts(), ", "); got != want {
						t.Errorf("named %v: decided %q, want %q", named, got, want)
					}
					wantArrivals := 1
					if again {
						wantArrivals = 2
					}
					if len(s.at) != wantArrivals {
						t.Errorf("named %v: %d attempts, want %d", named, len(s.at), wantArrivals)
					}
					if again && (err != nil || resp.StatusCode != 200) {
						t.Errorf("named %v: got %v, %v; want the second answer", named, resp, err)
					}
					for i, got := range s.got {
						if got != "question" {
							t.Errorf("attempt %d got the body %q", i+1, got)
						}
					}
				})
			})
		}
	}
}

func TestTheLastAnswerIsTheServersOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &decisions{}
		s := &script{steps: []func() (*http.Response, error){answers(503, "busy one", "Retry-After", "1"), answers(503, "busy two", "Retry-After", "1", "X-Request-Id", "r2")}}
		cfg := all(d)
		cfg.MaxAttempts = 2
		resp, err := newTransport(t, s, cfg).RoundTrip(post("x"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 503 || string(body) != "busy two" || resp.Header.Get("Retry-After") != "1" || resp.Header.Get("X-Request-Id") != "r2" {
			t.Errorf("got %d %q %v, want the second answer as it came", resp.StatusCode, body, resp.Header)
		}
		if want := []string{"try_later retried", "try_later exhausted"}; !slices.Equal(d.verdicts(), want) {
			t.Errorf("decided %v, want %v", d.verdicts(), want)
		}
	})
}

// Once there is a head with a status that nobody named, what follows is the app's: an
// event of an error passes, and a break shows, however early it comes.
func TestNothingIsTriedAgainAfterTheHead(t *testing.T) {
	for name, want := range map[string]string{"cut at once": "", "cut after an event": "data: 1\n\n", "error event": "event: error\ndata: {}\n\n"} {
		t.Run(name, func(t *testing.T) {
			d := &decisions{}
			s := &script{steps: []func() (*http.Response, error){func() (*http.Response, error) {
				resp := answer(200, "")
				resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(want), iotest.ErrReader(errCut)))
				return resp, nil
			}, answers(200, "again")}}
			resp, err := newTransport(t, s, all(d)).RoundTrip(post("x"))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(resp.Body); string(got) != want || !errors.Is(err, errCut) || len(s.at) != 1 || len(d.verdicts()) != 0 {
				t.Errorf("got %q, %v after %d attempts, decided %v; want %q and the break of the only one", got, err, len(s.at), d.verdicts(), want)
			}
		})
	}
}

// An answer that is thrown away is read to its end, so that its connection can serve
// the next attempt, and closed even if its end does not come.
func TestAnswersThrownAwayAreClosed(t *testing.T) {
	for name, endless := range map[string]bool{"short": false, "endless": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pr, pw := io.Pipe()
				go func() {
					_, _ = pw.Write([]byte("busy"))
					if !endless {
						_ = pw.Close()
					}
				}()
				body := &closes{Reader: pr}
				read := false
				s := &script{steps: []func() (*http.Response, error){func() (*http.Response, error) {
					resp := answer(503, "", "Retry-After", "1")
					resp.Body = struct {
						io.Reader
						io.Closer
					}{&atEnd{pr, func() { read = true }}, closeBoth{body, pr}}
					return resp, nil
				}, answers(200, "")}}
				cfg := all(&decisions{})
				cfg.Rand = func() float64 { return 0 }
				start := time.Now()
				if resp, err := newTransport(t, s, cfg).RoundTrip(post("x")); err != nil || resp.StatusCode != 200 {
					t.Fatal(resp, err)
				}
				if body.n.Load() == 0 || read == endless || time.Since(start) != time.Second {
					t.Errorf("closed %d times, read to the end %v, next attempt after %v", body.n.Load(), read, time.Since(start))
				}
			})
		})
	}
}

type closeBoth [2]io.Closer

func (c closeBoth) Close() error { _ = c[0].Close(); return c[1].Close() }

func TestWaitsAreNeverShorterThanAsked(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name  string
		rand  float64
		steps []func() (*http.Response, error)
		want  []time.Duration // of the attempts, after the start
	}{
		{"asked, no jitter", 0, []func() (*http.Response, error){answers(429, "", "Retry-After", "2"), answers(200, "")}, []time.Duration{0, 2 * s}},
		{"asked, half on top", 0.5, []func() (*http.Response, error){answers(429, "", "Retry-After", "2"), answers(200, "")}, []time.Duration{0, 2500 * time.Millisecond}},
		{"fraction", 0, []func() (*http.Response, error){answers(429, "", "Retry-After", "0.75"), answers(200, "")}, []time.Duration{0, 750 * time.Millisecond}},
		{"milliseconds before seconds", 0, []func() (*http.Response, error){answers(429, "", "Retry-After", "1", "Retry-After-Ms", "200"), answers(200, "")}, []time.Duration{0, 200 * time.Millisecond}},
		{"full jitter, doubled", 0.5, []func() (*http.Response, error){fails(errRefusedConn)}, []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond}},
		{"more than max_delay", 0, []func() (*http.Response, error){answers(429, "", "Retry-After", "6")}, []time.Duration{0}},
		{"twice more than the patience", 0, []func() (*http.Response, error){answers(429, "", "Retry-After", "4")}, []time.Duration{0, 4 * s}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				sc := &script{steps: tt.steps}
				cfg := all(&decisions{})
				cfg.Rand = func() float64 { return tt.rand }
				_, _ = newTransport(t, sc, cfg).RoundTrip(post("x"))
				if got := sc.gaps(start); !slices.Equal(got, tt.want) {
					t.Errorf("attempts at %v, want %v", got, tt.want)
				}
			})
		})
	}
}

func TestNothingAfterTheAppHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errLeft := errors.New("left")
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &script{steps: []func() (*http.Response, error){answers(429, "", "Retry-After", "3")}}
		time.AfterFunc(time.Second, func() { cancel(errLeft) })
		start := time.Now()
		_, err := newTransport(t, s, all(&decisions{})).RoundTrip(post("x").WithContext(ctx))
		if !errors.Is(err, errLeft) || time.Since(start) != time.Second || len(s.at) != 1 {
			t.Errorf("got %v after %v and %d attempts, want the cause after 1 s and one attempt", err, time.Since(start), len(s.at))
		}
	})
}

func TestNoAttemptBeyondTheAppsDeadline(t *testing.T) {
	for _, field := range []string{"X-Stainless-Timeout", "X-Stainless-Read-Timeout", "context"} {
		for limit, want := range map[string]int{"2": 1, "3": 2} {
			t.Run(field+" "+limit, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &script{steps: []func() (*http.Response, error){answers(429, "", "Retry-After", "2"), answers(200, "")}}
					cfg := all(&decisions{})
					cfg.Rand = func() float64 { return 0 }
					req := post("x")
					if field == "context" {
						d, _ := time.ParseDuration(limit + "s")
						ctx, cancel := context.WithTimeout(t.Context(), d)
						defer cancel()
						req = req.WithContext(ctx)
					} else {
						req.Header.Set(field, limit)
					}
					start := time.Now()
					resp, err := newTransport(t, s, cfg).RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					if len(s.at) != want {
						t.Errorf("%d attempts, want %d", len(s.at), want)
					}
					if want == 1 && (resp.StatusCode != 429 || time.Since(start) != 0) {
						t.Errorf("got %d after %v, want the 429 at once", resp.StatusCode, time.Since(start))
					}
				})
			})
		}
	}
}

func TestTheAppsOwnAttemptsCount(t *testing.T) {
	for count, want := range map[string]int{"": 3, "0": 3, "1": 2, "2": 1, "9": 1, "x": 3, "-1": 3} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{steps: []func() (*http.Response, error){fails(errRefusedConn)}}
			req := post("x")
			req.Header["X-Stainless-Retry-Count"] = []string{count}
			_, _ = newTransport(t, s, retry.Config{}).RoundTrip(req)
			if len(s.at) != want {
				t.Errorf("after %q retries of the app: %d attempts, want %d", count, len(s.at), want)
			}
		})
	}
}

func TestAFailureAfterAnAnswerSaysThatTheRequestWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, first := range []func() (*http.Response, error){answers(500, ""), fails(errCut)} {
			s := &script{steps: []func() (*http.Response, error){first, fails(errRefusedConn)}}
			_, err := newTransport(t, s, all(&decisions{})).RoundTrip(post("x"))
			var f interface {
				error
				RequestSent() bool
			}
			if !errors.As(err, &f) || !f.RequestSent() {
				t.Errorf("got %v, want an error that says that the request was sent", err)
			}
			if !errors.Is(err, errRefusedConn) || err.Error() != errRefusedConn.Error() {
				t.Errorf("got %v, want the last failure in words and chain", err)
			}
		}
	})
}

func TestValidate(t *testing.T) {
	tests := []struct {
		cfg  retry.Config
		want string
	}{
		{retry.Config{MaxAttempts: 11}, "max_attempts"},
		{retry.Config{MaxAttempts: -1}, "max_attempts"},
		{retry.Config{Budget: 1.5}, "budget"},
		{retry.Config{HedgeBudget: 2}, "hedge_budget"},
		{retry.Config{Statuses: []int{200}}, "statuses"},
		{retry.Config{BaseDelay: 6 * time.Second}, "base_delay"},
		{retry.Config{BaseDelay: -1}, "base_delay"},
		{retry.Config{Take: func(int64) bool { return true }}, "Give"},
	}
	for _, tt := range tests {
		if _, err := retry.New(http.DefaultTransport, tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v) = %v, want an error that names %s", tt.cfg, err, tt.want)
		}
	}
	if _, err := retry.New(nil, retry.Config{}); err == nil {
		t.Error("New(nil) gave no error")
	}
}

// An elsewhereFault is a failure of one endpoint among others.
type elsewhereFault struct{ *fault }

func (elsewhereFault) Elsewhere() bool { return true }

func TestAnotherEndpointIsTriedAtOnce(t *testing.T) {
	for _, first := range []*fault{
		errRefusedConn,
		{phase: "tls", code: "upstream_tls_untrusted"},
		{phase: "dns", code: "upstream_dns_failed", err: &net.DNSError{IsNotFound: true}},
		{phase: "connect", code: "upstream_connect_timeout", expired: true},
	} {
		t.Run(first.code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{steps: []func() (*http.Response, error){
					func() (*http.Response, error) { return nil, elsewhereFault{first} },
					func() (*http.Response, error) { return answer(200, "ok"), nil },
				}}
				tr := newTransport(t, s, retry.Config{Rand: func() float64 { return 0.99 }})
				start := time.Now()
				resp, err := tr.RoundTrip(post("x"))
				if err != nil || resp.StatusCode != 200 || len(s.at) != 2 || !s.at[1].Equal(start) {
					t.Errorf("%v, %v, attempts at %v: want the second at once", resp, err, s.at)
				}
			})
		})
	}
}
