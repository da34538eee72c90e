// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// TestOpenAPIListsAllPaths holds the description against the handlers and the list for
// people: nothing is missing in one of them, nothing is too much.
func TestOpenAPIListsAllPaths(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	nothing := func() error { return nil }
	a, err := New(Config{Ready: nothing, Metrics: http.NotFoundHandler(), Status: func() any { return nil }, Streams: func() any { return nil }, Quit: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range dashboardFiles() {
		delete(a.routes, path) // what a page loads is nothing to call
	}
	for path, rt := range a.routes {
		methods := 1
		if rt.patch != nil {
			methods = 2
		}
		if len(doc.Paths[path]) != methods || rt.patch != nil && doc.Paths[path]["patch"] == nil || doc.Paths[path][strings.ToLower(rt.method)] == nil {
			t.Errorf("%s %s is not described in openapi.json: add it to calls in internal/sidecar/openapi_test.go, and run that with -update", rt.method, path)
		}
		if path != "/" && !strings.Contains(indexText, rt.method+strings.Repeat(" ", 5-len(rt.method))+path+" ") {
			t.Errorf("%s %s is not in the list at /", rt.method, path)
		}
	}
	if len(doc.Paths) != len(a.routes) {
		t.Errorf("%d paths are described, there are %d", len(doc.Paths), len(a.routes))
	}
}
