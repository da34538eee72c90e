// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	never      = -1 // a fault that was not asked for
	beforeHead = -2 // a cut or reset that comes before any byte of the answer

	maxTokens    = 1 << 20
	maxTokenSize = 1 << 20
)

// Options is what one request asks for. Every name below is written in lower
// case after "Mock-" in a header field, or as it is in the model's name. N
// counts the events of a stream, or the four pieces of any other body.
type Options struct {
	TTFT   time.Duration // ttft=200ms: delay of the first token; of the head if the answer is no stream
	Gap    time.Duration // gap=10ms: pace of the further tokens
	Head   time.Duration // head=1s: delay of the response head
	Tokens int           // tokens=50
	Size   int           // size=16: bytes of a token; 0 means words of their natural length

	Cut       int           // cut=N|head: close without an end after N events
	Reset     int           // reset=N|head[:conn]: TCP RST on HTTP/1, RST_STREAM on HTTP/2
	ResetConn bool          // reset=N:conn: TCP RST on HTTP/2 too
	Stall     int           // stall=N[:dur]: silence after N events
	StallFor  time.Duration // 0 means until the client leaves
	Goaway    int           // goaway=N[:abrupt|:refuse]: GOAWAY after N events
	GoawayHow string        // "" is the two-step kind; "abrupt" closes at once; "refuse" names stream 0
	Error     int           // error=N: in-stream error after N events
	Clean     int           // clean=N: ends well after N events, without the terminal event

	Status       int    // status=429: answers with this status and the API's error body
	RetryAfter   string // retry-after=2: sent as it is
	RetryAfterMS string // retry-after-ms=1500: sent as it is
	ShouldRetry  string // should-retry=true|false: x-should-retry

	Gzip      bool          // gzip: if the client accepts it, flushed after each event
	GzipForce bool          // gzip=force: even if it does not
	EOL       string        // eol=lf|crlf|cr: line ends of an event stream
	Split     bool          // split: one byte a write
	Deflate   bool          // deflate: WebSocket messages are compressed, if the client has offered to read that
	Comments  bool          // comments: a ": PROCESSING" line before each event
	Early     int           // early=103: an interim response first
	Trailer   bool          // trailer: a trailer field after the body
	Close     bool          // close: "connection: close"
	Hold      bool          // hold: never answers
	Read      int           // read=64k: reads the body at this rate in bytes a second; header only
	NoRead    bool          // noread: answers without reading the body; header only
	Reject    bool          // expect=reject: 417 without reading the body; header only
	Session   time.Duration // session=1h[:1m]: how long a realtime session lasts; 0 = 1 h by OpenAI's word, and no end
	Notice    time.Duration // so long before it Gemini's goAway comes
	Pong      time.Duration // pong=8s|never: pings on a WebSocket are answered so late
	NoPong    bool          // or never
	First     int           // first=K: faults meet only the first K arrivals of one Mock-Id; 0 means all
}

func defaultOptions() Options {
	return Options{
		Tokens: 16, Cut: never, Reset: never, Stall: never, Goaway: never,
		Error: never, Clean: never, EOL: "\n",
	}
}

// headerOnly holds what must be known before the body is read.
var headerOnly = []string{"read", "noread", "expect"}

// fromHeader applies the Mock- fields of h.
func (o *Options) fromHeader(h http.Header) error {
	var unknown []string
	for name, values := range h {
		key, ok := strings.CutPrefix(strings.ToLower(name), "mock-")
		if !ok || key == "id" {
			continue
		}
		known, err := o.set(key, values[len(values)-1])
		if err != nil {
			return err
		}
		if !known {
			unknown = append(unknown, name)
		}
	}
	return unknownError(unknown)
}

// fromModel applies the options in a model's name.
func (o *Options) fromModel(model string) error {
	i := strings.IndexAny(model, "?;")
	if i < 0 {
		return nil
	}
	separators := "&"
	if model[i] == ';' {
		separators = ",;"
	}
	var unknown []string
	for _, part := range strings.FieldsFunc(model[i+1:], func(r rune) bool { return strings.ContainsRune(separators, r) }) {
		key, value, _ := strings.Cut(part, "=")
		if v, err := url.QueryUnescape(value); err == nil {
			value = v
		}
		if slices.Contains(headerOnly, key) {
			return fmt.Errorf("option %q works only as the header field Mock-%s, because the model is in the body", key, key)
		}
		known, err := o.set(key, value)
		if err != nil {
			return err
		}
		if !known {
			unknown = append(unknown, key)
		}
	}
	return unknownError(unknown)
}

func unknownError(names []string) error {
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("unknown mock options: %s", strings.Join(names, ", "))
}

// set applies one option and reports whether there is one of that name.
func (o *Options) set(key, value string) (known bool, err error) {
	known = true
	switch key {
	case "ttft":
		o.TTFT, err = duration(value)
	case "gap":
		o.Gap, err = duration(value)
	case "head":
		o.Head, err = duration(value)
	case "tokens":
		o.Tokens, err = number(value, maxTokens)
	case "size":
		o.Size, err = number(value, maxTokenSize)
	case "status":
		if o.Status, err = number(value, 599); err == nil && o.Status < 200 {
			err = fmt.Errorf("%d is no final status", o.Status)
		}
	case "retry-after":
		o.RetryAfter = value
	case "retry-after-ms":
		o.RetryAfterMS = value
	case "should-retry":
		o.ShouldRetry = value
	case "early":
		if o.Early, err = number(value, 199); err == nil && (o.Early < 100 || o.Early == 101) {
			err = fmt.Errorf("%d is no interim status", o.Early)
		}
	case "read":
		if o.Read, err = rate(value); err == nil && o.Read == 0 {
			err = fmt.Errorf("want a rate over 0; noread reads nothing")
		}
	case "first":
		o.First, err = number(value, maxTokens)
	default:
		if known, err = o.setFault(key, value); !known {
			known, err = o.setSwitch(key, value)
		}
	}
	if err != nil {
		err = fmt.Errorf("mock option %q: %w", key, err)
	}
	return known, err
}

func (o *Options) setFault(key, value string) (known bool, err error) {
	count, how, _ := strings.Cut(value, ":")
	switch key {
	case "cut":
		o.Cut, err = position(value)
	case "reset":
		o.Reset, err = position(count)
		if o.ResetConn = how == "conn"; err == nil && how != "" && how != "conn" {
			err = fmt.Errorf("want N or N:conn")
		}
	case "stall":
		if o.Stall, err = number(count, maxTokens); err == nil && how != "" {
			o.StallFor, err = duration(how)
		}
	case "goaway":
		o.Goaway, err = number(count, maxTokens)
		if o.GoawayHow = how; err == nil && !slices.Contains([]string{"", "abrupt", "refuse"}, how) {
			err = fmt.Errorf("want N, N:abrupt or N:refuse")
		}
	case "error":
		o.Error, err = number(value, maxTokens)
	case "clean":
		o.Clean, err = number(value, maxTokens)
	case "session":
		if o.Session, err = duration(count); err == nil && how != "" {
			o.Notice, err = duration(how)
		}
	case "pong":
		if o.NoPong = value == "never"; !o.NoPong {
			o.Pong, err = duration(value)
		}
	default:
		return false, nil
	}
	return true, err
}

func (o *Options) setSwitch(key, value string) (known bool, err error) {
	switch key {
	case "gzip":
		if value == "force" {
			o.Gzip, o.GzipForce = true, true
			break
		}
		o.Gzip, err = boolean(value)
	case "eol":
		ends := map[string]string{"lf": "\n", "crlf": "\r\n", "cr": "\r"}
		if o.EOL = ends[value]; o.EOL == "" {
			err = fmt.Errorf("want lf, crlf or cr")
		}
	case "split":
		o.Split, err = boolean(value)
	case "deflate":
		o.Deflate, err = boolean(value)
	case "comments":
		o.Comments, err = boolean(value)
	case "trailer":
		o.Trailer, err = boolean(value)
	case "close":
		o.Close, err = boolean(value)
	case "hold":
		o.Hold, err = boolean(value)
	case "noread":
		o.NoRead, err = boolean(value)
	case "expect":
		if o.Reject = value == "reject"; !o.Reject {
			err = fmt.Errorf("want reject")
		}
	default:
		return false, nil
	}
	return true, err
}

// calm removes the faults and keeps pace and shape.
func (o *Options) calm() {
	d := defaultOptions()
	o.Cut, o.Reset, o.Stall, o.Goaway, o.Error, o.Clean = d.Cut, d.Reset, d.Stall, d.Goaway, d.Error, d.Clean
	o.Status, o.Hold, o.Close, o.NoRead, o.Reject = 0, false, false, false, false
	o.Session, o.Notice, o.Pong, o.NoPong = 0, 0, 0, false
}

func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("want a duration such as 10ms")
	}
	return d, nil
}

func number(s string, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("want a number from 0 to %d", most)
	}
	return n, nil
}

func position(s string) (int, error) {
	if s == "head" {
		return beforeHead, nil
	}
	return number(s, maxTokens)
}

func rate(s string) (int, error) {
	unit := 1
	if cut, ok := strings.CutSuffix(s, "k"); ok {
		s, unit = cut, 1<<10
	} else if cut, ok := strings.CutSuffix(s, "m"); ok {
		s, unit = cut, 1<<20
	}
	n, err := number(s, 1<<30/unit)
	return n * unit, err
}

func boolean(s string) (bool, error) {
	switch s {
	case "", "1", "true", "on":
		return true, nil
	case "0", "false", "off":
		return false, nil
	}
	return false, fmt.Errorf("want true or false")
}
