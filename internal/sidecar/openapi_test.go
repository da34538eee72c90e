// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"flag"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/warmwire/warmwire/internal/sidecar"
)

var update = flag.Bool("update", false, "write internal/admin/openapi.json")

const openAPIFile = "../admin/openapi.json"

// A call is one path of the admin listener.
type call struct {
	method, path, summary string
	answer                any               // marshalled; nil = text
	one                   any               // that with the query id
	status                string            // of success; "" = 200
	query                 map[string]string // parameter -> what it is; a * takes any name
	stream                bool              // of events
	errors                []string          // beside those that every path has
}

type flushed struct {
	Status string `json:"status"`
	Name   string `json:"name"`
}

// calls are all paths, in the order of the list at /.
func calls() []call {
	answers := sidecar.Answers()
	done := struct {
		Status string `json:"status"`
	}{}
	return []call{
		{method: "get", path: "/", summary: "The list of paths, for people."},
		{method: "get", path: "/healthz", summary: "200 while the process answers. Needs no token."},
		{method: "get", path: "/readyz", summary: "200 when requests are taken. Needs no token.", errors: []string{"503"}},
		{method: "get", path: "/metrics", summary: "Metrics in the Prometheus formats (docs/metrics.md)."},
		{method: "get", path: "/v1/status", summary: "The process, its upstreams and their connections, memory, DNS, TLS, interception, tenants.", answer: answers["/v1/status"]},
		{method: "get", path: "/v1/streams", summary: "What runs, how far behind its app is, and where its time goes now (docs/latency.md).", answer: answers["/v1/streams"]},
		{method: "get", path: "/v1/events", summary: "Status and streams once a second, as server-sent events: event: state, data: {\"status\", \"streams\"}. 16 callers at most.", stream: true, errors: []string{"503"}},
		{method: "get", path: "/v1/flights", summary: "Connections to upstreams, those first whose log was kept because they stalled or broke; with id an object: what happened on one lately (docs/latency.md).",
			answer: answers["/v1/flights"], one: answers["/v1/flights?id"], errors: []string{"400", "404", "501"}, query: map[string]string{"id": "number of a connection"}},
		{method: "get", path: "/v1/requests/slowest", summary: "The slowest requests of the last hour and where their time went (docs/latency.md); 32 at most.", answer: answers["/v1/requests/slowest"], errors: []string{"400", "501"},
			query: map[string]string{"by": "duration, first_token or late (what the network, a hop and the app took)"}},
		{method: "get", path: "/v1/requests/interrupted", summary: "The last requests that broke off, the newest first; 32 at most.", answer: answers["/v1/requests/interrupted"], errors: []string{"501"}},
		{method: "get", path: "/v1/settings", summary: "What POST /v1/tune takes, and the values in force.", answer: answers["/v1/settings"], errors: []string{"501"}},
		{method: "get", path: "/v1/config", summary: "The configuration as the file could have it, secrets masked; its ETag serves If-Match. It is in force but for what takes effect at a start only and has changed since: restart in /v1/status.", answer: map[string]any{}, errors: []string{"501"}},
		{method: "patch", path: "/v1/config", summary: "Changes the configuration by a JSON Merge Patch (RFC 7396), as if it stood in the file: all or nothing. null takes the default back; a secret that comes back masked is kept. What takes effect at a start only is refused without save. What is not saved lasts until the process ends. If-Match takes the ETag.",
			answer: answers["/v1/config"], errors: []string{"400", "408", "412", "413", "422", "501"},
			query: map[string]string{"dry_run": "true: only say what it would do", "save": "true: write it into the file too, whose comments stay", "replace": "true: in place of all patches before that were not saved"}},
		{method: "get", path: "/v1/openapi.json", summary: "This document.", answer: map[string]any{}},
		{method: "post", path: "/v1/dns/flush", summary: "Forgets what DNS said.", answer: flushed{}, errors: []string{"501"}, query: map[string]string{"name": "one host; all names without it"}},
		{method: "post", path: "/v1/tls/flush", summary: "Forgets TLS sessions.", answer: struct {
			flushed
			Sessions int `json:"sessions"`
		}{}, errors: []string{"501"}, query: map[string]string{"name": "of one host; all without it"}},
		{method: "post", path: "/v1/intercept/clear", summary: "Intercepts again what was left alone because its apps did not accept the certificate.", answer: struct {
			Status string `json:"status"`
			Host   string `json:"host"`
			Hosts  int    `json:"hosts"`
		}{}, errors: []string{"501"}, query: map[string]string{"host": "one host; all without it"}},
		{method: "post", path: "/v1/reload", summary: "Reads the configuration again. After an error the running one stays.", answer: done, errors: []string{"422", "501"}},
		{method: "post", path: "/v1/tune", summary: "Changes settings until the next start (docs/configuration.md); an empty value takes the file's back. All or nothing.", answer: struct {
			Status  string            `json:"status"`
			Changes map[string]string `json:"changes"`
			Saved   string            `json:"saved,omitempty"` // the file
		}{}, errors: []string{"400", "422", "501"}, query: map[string]string{"*": "a key and its value, such as upstreams.openai.retry.budget=0.1", "save": "true: write them into the file too, whose comments stay"}},
		{method: "post", path: "/v1/tune/preview", summary: "What /v1/tune would change and touch. Changes nothing.", answer: answers["/v1/tune/preview"], errors: []string{"400", "422", "501"},
			query: map[string]string{"*": "as for /v1/tune"}},
		{method: "post", path: "/v1/upgrade", summary: "Starts the program that is on disk now and hands over to it. If that does not come up, the running one stays.", answer: done, errors: []string{"409", "501"}},
		{method: "post", path: "/v1/quit", summary: "Drains and exits. The answer comes before.", answer: done, status: "202"},
	}
}

type object = map[string]any

// document is the description of calls in OpenAPI 3.1, whose schemas are those of JSON
// Schema 2020-12.
func document() object {
	schemas := object{"Error": object{"type": "object", "required": []string{"error"}, "additionalProperties": false, "properties": object{
		"error": object{"type": "object", "required": []string{"code", "message"}, "additionalProperties": false, "properties": object{
			"code": object{"type": "string", "description": "stable, for programs"}, "message": object{"type": "string", "description": "for people"}}}}}}
	refusal := func(what string) object {
		return object{"description": what, "content": object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Error"}}}}
	}
	texts := map[string]string{"400": "the query is wrong", "401": "the token is missing or wrong", "403": "a web page asks, or a token is needed and none is configured",
		"404": "there is none of this number any more", "408": "the body did not come", "412": "the configuration is another than If-Match says", "413": "the body is too large", "415": "a change whose body does not say that it is JSON", "422": "refused; the message says why, and nothing has changed", "501": "this process has no such thing", "503": "not now; the message says why"}
	paths := object{}
	for _, c := range calls() {
		ok := object{"description": "done", "content": object{"text/plain": object{"schema": object{"type": "string"}}}}
		if c.answer != nil {
			schema := schemaOf(reflect.TypeOf(c.answer), schemas)
			if c.one != nil {
				schema = object{"oneOf": []object{schema, schemaOf(reflect.TypeOf(c.one), schemas)}}
			}
			ok["content"] = object{"application/json": object{"schema": schema}}
		}
		if c.stream {
			ok["content"] = object{"text/event-stream": object{"schema": object{"type": "string"}}}
		}
		status := c.status
		if status == "" {
			status = "200"
		}
		answers := object{status: ok}
		codes := append([]string{"401", "403"}, c.errors...)
		op := object{"summary": c.summary, "responses": answers, "operationId": strings.Trim(strings.NewReplacer("/v1/", "", "/", "-", ".", "-").Replace(c.path), "-") + "-" + c.method}
		if c.method == "patch" {
			op["requestBody"] = object{"required": true, "content": object{"application/merge-patch+json": object{"schema": object{"type": "object"}}, "application/json": object{"schema": object{"type": "object"}}}}
		}
		if c.method != "get" {
			codes = append(codes, "415")
			op["security"] = []object{{"token": []string{}}}
		}
		for _, code := range codes {
			answers[code] = refusal(texts[code])
		}
		var params []object
		for _, name := range slices.Sorted(maps.Keys(c.query)) {
			what := c.query[name]
			p := object{"name": name, "in": "query", "description": what, "schema": object{"type": "string"}}
			if name == "*" {
				p["name"], p["style"], p["explode"], p["required"] = "settings", "form", true, true
				p["schema"] = object{"type": "object", "additionalProperties": object{"type": "string"}, "minProperties": 1}
			}
			params = append(params, p)
		}
		if params != nil {
			op["parameters"] = params
		}
		if paths[c.path] == nil {
			paths[c.path] = object{}
		}
		paths[c.path].(object)[c.method] = op
	}
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "Warmwire admin listener", "version": "1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Reads are open on loopback; changes need the token of admin.token_file, or the Unix socket. A change by POST takes no body, or {} with Content-Type: application/json. Beyond loopback all but /healthz and /readyz need the token."},
		"servers": []object{{"url": "http://127.0.0.1:8485"}},
		"paths":   paths,
		"components": object{"schemas": schemas, "securitySchemes": object{
			"token": object{"type": "http", "scheme": "bearer", "description": "the content of admin.token_file"}}},
	}
}

// schemaOf describes what encoding/json makes of a type. Named structs go to schemas.
func schemaOf(t reflect.Type, schemas object) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem(), schemas)
	case t.Kind() == reflect.Slice:
		return object{"type": []string{"array", "null"}, "items": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Struct && t.Name() != "":
		name := strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
		if _, there := schemas[name]; !there {
			schemas[name] = nil // it may contain itself
			schemas[name] = structOf(t, schemas)
		}
		return object{"$ref": "#/components/schemas/" + name}
	case t.Kind() == reflect.Struct:
		return structOf(t, schemas)
	case t.Kind() == reflect.Interface:
		return object{}
	case t.Kind() == reflect.String:
		return object{"type": "string"}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number"}
	}
	return object{"type": "integer"} // what is none fails against the answers
}

func structOf(t reflect.Type, schemas object) object {
	properties, required := object{}, []string{}
	for f := range t.Fields() {
		if f.Anonymous {
			inner := structOf(f.Type, schemas)
			for name, schema := range inner["properties"].(object) {
				properties[name] = schema
			}
			required = append(required, inner["required"].([]string)...)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties[name] = schemaOf(f.Type, schemas)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// TestOpenAPI keeps the description true: it is that of the types, and the answers of a
// running Warmwire are as it says.
func TestOpenAPI(t *testing.T) {
	text, err := json.MarshalIndent(document(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if *update {
		if err := os.WriteFile(openAPIFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if committed, err := os.ReadFile(openAPIFile); err != nil || !bytes.Equal(committed, text) {
		t.Fatalf("%s is not what the types say (%v): write it with go test ./internal/sidecar -run OpenAPI -update", openAPIFile, err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // a stream that runs
	}))
	defer api.Close()
	r := start(t, api.Listener.Addr().String(), "")
	defer r.stop()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/up/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, c := range calls() {
		if c.answer == nil {
			continue
		}
		if c.path == "/v1/quit" { // which would wait for the stream
			leave()
		}
		status, body := http.StatusOK, ""
		if c.method == "get" {
			body = r.get(c.path)
		} else if c.method == "patch" {
			var h http.Header
			if status, body, h = r.patch("", `{"log": {"level": "warn"}}`, nil); h.Get("ETag") == "" {
				t.Error("no ETag")
			}
		} else {
			query := ""
			for name := range c.query {
				query += "&" + strings.NewReplacer("*", "upstreams.up.retry.budget=0.1", "save", "save=true").Replace(name)
			}
			status, body = r.post(c.path + "?" + strings.TrimPrefix(query, "&"))
		}
		code := "200"
		if c.status != "" {
			code = c.status
		}
		if status/100 != 2 {
			t.Fatalf("%s: %d %s", c.path, status, body)
		}
		bodies := []string{body}
		if c.one != nil {
			bodies = append(bodies, r.get(c.path+"?id=1"))
		}
		schema, err := compiler.Compile("openapi.json#/paths/" + strings.ReplaceAll(c.path, "/", "~1") + "/" + c.method + "/responses/" + code + "/content/application~1json/schema")
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range bodies {
			answer, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
			if err == nil {
				err = schema.Validate(answer)
			}
			if err != nil {
				t.Errorf("%s: %v in %s", c.path, err, body)
			}
		}
	}
}
