// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ParseAddress reads the address of an API. Its errors do not repeat it, since
// a query may hold a key.
func ParseAddress(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("the address cannot be read: want one such as https://api.openai.com/v1/chat/completions")
	case u.User != nil:
		return nil, errors.New("the address holds a user name: send credentials with --header or --key-env")
	case u.Host == "":
		return nil, errors.New("the address has no host: want one such as https://api.openai.com/v1/chat/completions")
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// ShowAddress is u without its query.
func ShowAddress(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

// ThroughTarget is the target of the same call through a proxy at via: an
// address whose path is that of an API is taken as it is, a path of another kind
// is a base URL before direct's path, and an address without path is sent
// direct's host in the Host field.
func ThroughTarget(direct Target, via *url.URL) Target {
	t := Target{URL: via, Header: direct.Header}
	if DetectAPI(via.Path) != "" {
		return t
	}
	u := *direct.URL
	u.Scheme, u.Host = via.Scheme, via.Host
	if base := strings.TrimRight(via.Path, "/"); base != "" {
		u.Path, u.RawPath = base+u.Path, ""
		if direct.URL.RawPath != "" {
			u.RawPath = strings.TrimRight(via.EscapedPath(), "/") + direct.URL.RawPath
		}
	} else {
		t.Host = direct.URL.Host
	}
	if len(via.RawQuery) > 0 {
		u.RawQuery = via.RawQuery
	}
	t.URL = &u
	return t
}

// ParseLimits reads limits such as ttft=500ms,tpot=50ms,e2el=10s.
func ParseLimits(s string) (l Limits, err error) {
	for part := range strings.SplitSeq(s, ",") {
		name, value, found := strings.Cut(strings.TrimSpace(part), "=")
		var into *time.Duration
		switch name {
		case "ttft":
			into = &l.TTFT
		case "tpot":
			into = &l.TPOT
		case "e2el":
			into = &l.E2E
		}
		if into == nil || !found {
			return Limits{}, fmt.Errorf("limit %q: want ttft=, tpot= or e2el= and a duration", part)
		}
		if *into, err = time.ParseDuration(value); err != nil || *into <= 0 {
			return Limits{}, fmt.Errorf("limit %q: want a duration above zero such as 500ms", part)
		}
	}
	return l, nil
}

// ParseHeader reads a header field such as "Name: value". Its errors do not
// repeat the value.
func ParseHeader(s string) (name, value string, err error) {
	name, value, found := strings.Cut(s, ":")
	name, value = strings.TrimSpace(name), strings.Trim(value, " \t")
	token := func(r rune) bool { // RFC 9110 §5.6.2
		return r > ' ' && r < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	}
	switch {
	case !found || name == "" || strings.ContainsFunc(name, func(r rune) bool { return !token(r) }):
		return "", "", errors.New(`a header field is written "Name: value"`)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return "", "", fmt.Errorf("the value of header field %s holds a control character", name)
	}
	return name, value, nil
}

// maxCells bounds a grid.
const maxCells = 10_000

// ParseLengths reads token counts such as 512,2048,8192.
func ParseLengths(s string) (out []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 || n > 4_000_000 {
			return nil, fmt.Errorf("length %q: want numbers of tokens from 1 to 4000000, as in 512,2048", part)
		}
		out = append(out, n)
	}
	return out, nil
}
