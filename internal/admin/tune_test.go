// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/admin"
)

func TestTune(t *testing.T) {
	var got, saved map[string]string
	var fail error
	r := newRig(t, func(c *admin.Config) {
		c.Tune = func(changes map[string]string) error {
			got = changes
			return fail
		}
		c.TuneAndSave = func(changes map[string]string) (string, error) {
			saved = changes
			return "/etc/w.yaml", fail
		}
	})
	post := func(query string, header http.Header) answer {
		return r.ask(t, ask{method: http.MethodPost, path: "/v1/tune" + query, header: header})
	}
	if a := post("?a.b=1", nil); a.status != http.StatusUnauthorized || got != nil {
		t.Errorf("without a token: %d, %v", a.status, got)
	}
	if a := post("?a.b=%5B1%5D&c=", change()); a.status != http.StatusOK || !maps.Equal(got, map[string]string{"a.b": "[1]", "c": ""}) {
		t.Errorf("%d %s, %v", a.status, a.body, got)
	}
	for _, query := range []string{"", "?", "?a=1&a=2", "?a=%zz", "?a;b", "?save=true", "?a=1&save=yes", "?a=1&save=", "?a=1&save=true&save=true"} {
		if a := post(query, change()); a.status != http.StatusBadRequest || a.code != "bad_query" {
			t.Errorf("%q: %d %s", query, a.status, a.body)
		}
	}
	if a := post("?a=2&save=false", change()); a.status != http.StatusOK || saved != nil || !maps.Equal(got, map[string]string{"a": "2"}) || strings.Contains(a.body, "saved") {
		t.Errorf("not to be saved: %d %s, %v", a.status, a.body, saved)
	}
	got = nil
	if a := post("?a=1&save=true", change()); a.status != http.StatusOK || got != nil || !maps.Equal(saved, map[string]string{"a": "1"}) || !strings.Contains(a.body, `"saved": "/etc/w.yaml"`) {
		t.Errorf("to be saved: %d %s, %v", a.status, a.body, saved)
	}
	fail = errors.New("no such key")
	if a := post("?a=1", change()); a.status != http.StatusUnprocessableEntity || a.code != "tune_failed" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := post("?a=1&save=true", change()); a.status != http.StatusUnprocessableEntity || a.code != "tune_failed" {
		t.Errorf("%d %s", a.status, a.body)
	}
	none := newRig(t, func(c *admin.Config) { c.Tune = nil })
	if a := none.ask(t, ask{method: http.MethodPost, path: "/v1/tune?a=1", header: change()}); a.status != http.StatusNotImplemented || a.code != "not_tunable" {
		t.Errorf("%d %s", a.status, a.body)
	}
}
