// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/warmwire/warmwire/internal/admin"
	"github.com/warmwire/warmwire/internal/config"
)

// patch changes the configuration of a running Warmwire.
func (r *rig) patch(query, body string, fields http.Header) (status int, answer string, h http.Header) {
	r.t.Helper()
	token, err := os.ReadFile(r.state + "/admin.token")
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPatch, "http://"+r.admin+"/v1/config"+query, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + strings.TrimSpace(string(token))}, "Content-Type": {"application/merge-patch+json"}}
	for name, values := range fields {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
}

// at reads a value of the configuration in force.
func (r *rig) at(keys ...string) any {
	r.t.Helper()
	var v any
	if err := json.Unmarshal([]byte(r.get("/v1/config")), &v); err != nil {
		r.t.Fatal(err)
	}
	for _, key := range keys {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

// TestPatchTheConfiguration changes what tune does not: an upstream comes, gets a key,
// moves, and goes.
func TestPatchTheConfiguration(t *testing.T) {
	seen := make(chan string, 10)
	server := func(name string) string {
		api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- name + " " + r.Header.Get("Authorization") }))
		t.Cleanup(api.Close)
		return api.URL
	}
	a, b := server("a"), server("b")
	r := start(t, strings.TrimPrefix(a, "http://"), "")
	for _, step := range []struct{ patch, want string }{
		{`{"upstreams": {"new": {"url": "` + a + `"}}}`, "a "},
		{`{"upstreams": {"new": {"headers": {"set": {"Authorization": "Bearer s3cret"}}}}}`, "a Bearer s3cret"},
		{`{"upstreams": {"new": {"url": "` + b + `", "headers": {"set": {"Authorization": "****"}}}}}`, "b Bearer s3cret"},
		{`{"upstreams": {"new": {"headers": null}}}`, "b "},
	} {
		status, body, _ := r.patch("", step.patch, nil)
		if status != http.StatusOK || strings.Contains(body, "s3cret") || !strings.Contains(body, `"until": "this process ends`) {
			t.Fatalf("%s: %d %s", step.patch, status, body)
		}
		if r.call("/new/x"); <-seen != step.want {
			t.Errorf("%s is not in force", step.patch)
		}
	}
	if status, body := r.post("/v1/reload"); status != http.StatusOK || r.at("upstreams", "new", "url") != b {
		t.Errorf("a reload does not keep it: %d %s", status, body)
	}
	if status, body, _ := r.patch("", `{"upstreams": {"new": null}}`, nil); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if status, _ := r.call("/new/x"); status != http.StatusNotFound {
		t.Errorf("gone, but %d", status)
	}
	r.stop()
	if strings.Contains(r.log.String(), "s3cret") {
		t.Error("a secret is in the log")
	}
}

func TestPatchIsAllOrNothing(t *testing.T) {
	api, _ := answering(t, okAnswer)
	r := start(t, api, "")
	before := r.get("/v1/config")
	file, _ := os.ReadFile(r.file)
	for name, tt := range map[string]struct {
		query, patch string
		fields       http.Header
		status       int
		code, says   string
	}{
		"a wrong value beside a good one": {"", `{"log": {"level": "debug"}, "defaults": {"retry": {"budget": "much"}}}`, nil, 422, "patch_failed", "defaults.retry.budget"},
		"an unknown key":                  {"", `{"log": {"levle": "debug"}}`, nil, 422, "patch_failed", "did you mean level?"},
		"a masked secret elsewhere":       {"", `{"listen": {"token": "****"}}`, nil, 422, "patch_failed", "listen.token"},
		"what cannot be built":            {"", `{"upstreams": {"up": {"tls": {"ca_file": "/no/such/file"}}}}`, nil, 422, "patch_failed", "/no/such/file"},
		"what needs a start":              {"", `{"limits": {"connections": 7}, "log": {"level": "debug"}}`, nil, 422, "patch_failed", "limits.connections: takes effect at a start only"},
		"twice":                           {"", `{"log": {}, "log": {}}`, nil, 400, "bad_patch", "twice"},
		"no object":                       {"", `[]`, nil, 400, "bad_patch", "object"},
		"nothing":                         {"", ``, nil, 400, "bad_patch", "early"},
		"too deep":                        {"", strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40), nil, 400, "bad_patch", "deeper"},
		"too large":                       {"", `{"log": "` + strings.Repeat("x", 256<<10) + `"}`, nil, 413, "body_too_large", "256 KiB"},
		"another type":                    {"", `{}`, http.Header{"Content-Type": {"text/plain"}}, 415, "json_required", "merge-patch+json"},
		"the other patch type":            {"", `[]`, http.Header{"Content-Type": {"application/json-patch+json"}}, 415, "json_required", "merge-patch+json"},
		"no type":                         {"", `{}`, http.Header{"Content-Type": nil}, 415, "json_required", "merge-patch+json"},
		"two types":                       {"", `{}`, http.Header{"Content-Type": {"application/json", "text/plain"}}, 415, "json_required", "merge-patch+json"},
		"a foreign page":                  {"", `{}`, http.Header{"Origin": {"http://localhost.attacker.example"}}, 403, "origin_not_allowed", "another web page"},
		"an opaque page":                  {"", `{}`, http.Header{"Origin": {"null"}}, 403, "origin_not_allowed", ""},
		"a cross-site fetch":              {"", `{}`, http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403, "cross_site_request", ""},
		"no token":                        {"", `{}`, http.Header{"Authorization": nil}, 401, "token_required", ""},
		"another configuration":           {"", `{"log": {"level": "debug"}}`, http.Header{"If-Match": {`"0123"`}}, 412, "precondition_failed", "get it again"},
		"a weak tag":                      {"", `{"log": {"level": "debug"}}`, http.Header{"If-Match": {"W/" + r.tag()}}, 412, "precondition_failed", "get it again"},
		"an unknown parameter":            {"?sav=true", `{"log": {"level": "debug"}}`, nil, 400, "bad_query", "save=true"},
		"half a parameter":                {"?save=yes", `{"log": {"level": "debug"}}`, nil, 400, "bad_query", "save=true"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, _ := r.patch(tt.query, tt.patch, tt.fields)
			if status != tt.status || !strings.Contains(body, `"`+tt.code+`"`) || !strings.Contains(body, tt.says) {
				t.Errorf("%d %s, want %d %s %q", status, body, tt.status, tt.code, tt.says)
			}
			if now := r.get("/v1/config"); now != before {
				t.Error("something has changed")
			}
		})
	}
	status, body, _ := r.patch("?dry_run=true", `{"limits": {"connections": 7}, "log": {"level": "debug"}}`, nil)
	if status != http.StatusOK || !strings.Contains(body, `"restart": [
    "limits.connections"
  ]`) || !strings.Contains(body, `"from": "info"`) || r.get("/v1/config") != before {
		t.Errorf("dry run: %d %s", status, body)
	}
	if now, _ := os.ReadFile(r.file); string(now) != string(file) {
		t.Error("the file has changed")
	}
}

func (r *rig) tag() string {
	resp, err := http.Get("http://" + r.admin + "/v1/config")
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.Header.Get("ETag")
}

// TestPatchIsSaved writes into the file, whose comments stay, or does nothing.
func TestPatchIsSaved(t *testing.T) {
	api, _ := answering(t, okAnswer)
	r := start(t, api, "# of mine\nforward:\n  deny:\n    - a.test # why\n")
	if status, body, _ := r.patch("", `{"drain": {"wait": "1s"}}`, nil); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	status, body, h := r.patch("?save=true", `{"log": {"level": "debug"}, "limits": {"connections": 77}}`, http.Header{"If-Match": {r.tag()}})
	if status != http.StatusOK || !strings.Contains(body, `"saved": true`) || !strings.Contains(body, "limits.connections") || h.Get("ETag") != r.tag() {
		t.Fatalf("%d %s", status, body)
	}
	text, _ := os.ReadFile(r.file)
	if s := string(text); !strings.Contains(s, "- a.test # why") || !strings.Contains(s, "level: debug") || !strings.Contains(s, "connections: 77") || strings.Contains(s, "1s") {
		t.Errorf("saved as\n%s", s)
	}
	if r.at("drain", "wait") != "1s" {
		t.Error("what was not saved is lost")
	}
	status, body, _ = r.patch("?save=true", `{"forward": {"deny": ["b.test"]}, "log": {"level": "warn"}}`, nil)
	if now, _ := os.ReadFile(r.file); status != 422 || !strings.Contains(body, "by hand") || string(now) != string(text) || r.at("log", "level") != "debug" {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ = r.patch("?replace=true", `{}`, nil); status != http.StatusOK || r.at("drain", "wait") != "0s" || r.at("log", "level") != "debug" {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ = r.patch("?save=true", `{"log": {"level": null}}`, nil); status != http.StatusOK || r.at("log", "level") != "info" {
		t.Errorf("%d %s", status, body)
	}
	if now, _ := os.ReadFile(r.file); strings.Contains(string(now), "level:") {
		t.Errorf("saved as\n%s", now)
	}
}

// TestPatchThatCannotBeWritten is found out after it was applied, and is taken back.
func TestPatchThatCannotBeWritten(t *testing.T) {
	api, _ := answering(t, okAnswer)
	r := start(t, api, "")
	before, tag := r.get("/v1/config"), r.tag()
	r.full = true
	status, body, _ := r.patch("?save=true", `{"log": {"level": "debug"}}`, nil)
	if status != http.StatusUnprocessableEntity || !strings.Contains(body, "no space left on device") || !strings.Contains(body, "what was in force is again") {
		t.Errorf("%d %s", status, body)
	}
	if r.get("/v1/config") != before || r.tag() != tag {
		t.Error("something has changed")
	}
	r.full = false
	if status, body, _ := r.patch("?save=true", `{"log": {"level": "debug"}}`, http.Header{"If-Match": {tag}}); status != http.StatusOK {
		t.Errorf("with room again: %d %s", status, body)
	}
}

// TestTunesAreSaved has callers save at once: what each was told is saved is in the file and
// in force, and stands there alone. What cannot be written changes nothing.
func TestTunesAreSaved(t *testing.T) {
	api, _ := answering(t, okAnswer)
	r := start(t, api, "# of mine\n")
	if status, body := r.post("/v1/tune?upstreams.up.retry.budget=0.1&limits.memory=99MiB"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	settings := map[string]string{"upstreams.up.retry.budget": "0.15", "upstreams.up.timeouts.idle": "55m", "upstreams.up.pool.max_streams": "7", "drain.wait": "1s"}
	var all sync.WaitGroup
	for key, value := range settings {
		all.Go(func() {
			if status, body := r.post("/v1/tune?save=true&" + key + "=" + value); status != http.StatusOK || !strings.Contains(body, `"saved": "`+r.file+`"`) {
				t.Errorf("%s: %d %s", key, status, body)
			}
		})
	}
	all.Wait()
	text, _ := os.ReadFile(r.file)
	fresh, _, err := config.Load(r.file, os.LookupEnv)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	var st struct{ Values, Tuned map[string]string }
	if err := json.Unmarshal([]byte(r.get("/v1/settings")), &st); err != nil {
		t.Fatal(err)
	}
	for key, value := range settings {
		if st.Values[key] != value || fresh.Values()[key] != value {
			t.Errorf("%s is %q, and %q in the file", key, st.Values[key], fresh.Values()[key])
		}
	}
	if !maps.Equal(st.Tuned, map[string]string{"limits.memory": "99MiB"}) || !strings.Contains(string(text), "# of mine") || strings.Contains(string(text), "99MiB") {
		t.Errorf("tuned %v, saved as\n%s", st.Tuned, text)
	}
	before := r.get("/v1/settings")
	r.full = true
	if status, body := r.post("/v1/tune?save=true&drain.wait=3s"); status != http.StatusUnprocessableEntity || !strings.Contains(body, "no space left on device") {
		t.Errorf("%d %s", status, body)
	}
	r.full = false
	for change, reason := range map[string]string{"drain.wait=": "nothing to save", "listen.address=127.0.0.1:1": "cannot be changed while Warmwire runs", "drain.wait=3s&upstreams.none.resume=true": "no upstream"} {
		if status, body := r.post("/v1/tune?save=true&" + change); status != http.StatusUnprocessableEntity || !strings.Contains(body, reason) {
			t.Errorf("%s: %d %s", change, status, body)
		}
	}
	if now, _ := os.ReadFile(r.file); r.get("/v1/settings") != before || string(now) != string(text) {
		t.Errorf("something has changed: %s\n%s", r.get("/v1/settings"), now)
	}
}

// TestWhatWaitsForAStart compares with what runs, not with what was read last: each reload
// warns until the value is back, and a patch back to it needs no start.
func TestWhatWaitsForAStart(t *testing.T) {
	api, _ := answering(t, okAnswer)
	r := start(t, api, "")
	waits := func(want ...string) {
		t.Helper()
		var st struct{ Restart []string }
		if err := json.Unmarshal([]byte(r.get("/v1/status")), &st); err != nil || !slices.Equal(st.Restart, want) {
			t.Errorf("%q wait for a start, want %q (%v)", st.Restart, want, err)
		}
	}
	const warning = "limits.connections has changed: restart"
	reload := func(more string, warnings int) {
		t.Helper()
		r.write(api, more)
		if err := r.s.Reload(); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(r.log.String(), warning); n != warnings {
			t.Errorf("%d warnings, want %d", n, warnings)
		}
	}
	waits()
	real := r.at("limits", "connections")
	reload("limits: {connections: 600}\n", 1)
	reload("limits: {connections: 600}\n", 2)
	waits("limits.connections")
	// The patch of what waits for no start is not refused for what does.
	if status, body, _ := r.patch("", `{"drain": {"wait": "1s"}}`, nil); status != http.StatusOK || !strings.Contains(body, `"restart": []`) {
		t.Errorf("%d %s", status, body)
	}
	for value, restart := range map[any]string{real: `"restart": []`, 77: "limits.connections\"\n"} {
		patch := fmt.Sprintf(`{"limits": {"connections": %v}}`, value)
		if status, body, _ := r.patch("?dry_run=true", patch, nil); status != http.StatusOK || !strings.Contains(body, restart) {
			t.Errorf("%s: %d %s", patch, status, body)
		}
	}
	before := strings.Count(r.log.String(), warning)
	reload("", before)
	waits()
}

// TestConfigurationIsNotSentAgain where the reader has it (RFC 9110 §13.1.2).
func TestConfigurationIsNotSentAgain(t *testing.T) {
	api, _ := answering(t, okAnswer)
	r := start(t, api, "")
	tag := r.tag()
	ask := func(has string) (int, int64) {
		req, err := http.NewRequest(http.MethodGet, "http://"+r.admin+"/v1/config", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("If-None-Match", has)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil || resp.Header.Get("ETag") != r.tag() {
			t.Errorf("%s: %v, tag %s", has, err, resp.Header.Get("ETag"))
		}
		return resp.StatusCode, n
	}
	for _, has := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
		if status, n := ask(has); status != http.StatusNotModified || n != 0 {
			t.Errorf("%s: %d with %d bytes", has, status, n)
		}
	}
	if status, n := ask(`"other"`); status != http.StatusOK || n == 0 {
		t.Errorf("another: %d with %d bytes", status, n)
	}
	r.patch("", `{"log": {"level": "debug"}}`, nil)
	if status, _ := ask(tag); status != http.StatusOK {
		t.Errorf("of before a change: %d", status)
	}
}

// TestFromBeyondLoopback has the admin listener where the apps' token is the operator's:
// who has it chooses neither what is trusted, nor what becomes of the operator's own
// changes, nor does a value name a variable of the environment, where keys are.
func TestFromBeyondLoopback(t *testing.T) {
	t.Setenv("WARMWIRE_TEST_KEY", "s3cret")
	api, _ := answering(t, okAnswer)
	r := start(t, api, "admin: {address: '0.0.0.0:0'}\nlisten: {address: 127.0.0.1:0, token: 0123456789abcdef}\n")
	patch := func(body string, req admin.ConfigPatch) (string, error) {
		req.Body, req.Match = []byte(body), func(string) bool { return true }
		answer, _, err := r.s.Patch(req)
		text, _ := json.Marshal(answer)
		return string(text), err
	}
	for _, body := range []string{
		`{"upstreams": null}`, `{"listen": null}`, `{"upstreams": {"up": null}}`, `{"upstreams": {"up": {"tls": null}}}`, `{"defaults": {"tls.ca_only": true}}`,
		`{"upstreams": {"new": {"url": "http://a.test"}}}`, `{"parent_proxy": "http://a.test:1"}`,
		`{"upstreams": {"up": {"routing": {"load_path": "/${WARMWIRE_TEST_KEY}"}}}}`, `{"upstreams": {"up": {"classes": [{"path": "/${WARMWIRE_TEST_KEY}", "class": "batch"}]}}}`,
	} {
		for _, req := range []admin.ConfigPatch{{}, {DryRun: true}, {Replace: true}, {Save: true, DryRun: true}} {
			if answer, err := patch(body, req); err == nil || strings.Contains(answer+err.Error(), "s3cret") || !strings.Contains(err.Error(), "beyond loopback") {
				t.Errorf("%s %+v: %v %s", body, req, err, answer)
			}
		}
	}
	for _, text := range []string{"/${WARMWIRE_TEST_KEY}", `"/\x24{WARMWIRE_TEST_KEY}"`} {
		changes := map[string]string{"upstreams.up.routing.load_path": text}
		if err := r.s.Tune(changes); err == nil || !strings.Contains(err.Error(), "beyond loopback") {
			t.Errorf("tuned to %s: %v", text, err)
		}
		if answer, err := r.s.Preview(changes); err == nil {
			t.Errorf("%s shows %+v", text, answer)
		}
	}
	if _, err := patch(`{"defaults": {"timeouts": {"connect": "3s"}}, "upstreams": {"up": {"routing": {"load_path": "/$${a}"}}}}`, admin.ConfigPatch{Save: true}); err != nil {
		t.Error(err)
	}
	if err := r.s.Tune(map[string]string{"upstreams.up.routing.load_path": "/metrics"}); err != nil {
		t.Error(err)
	}
	r.s.PatchByOperator(t, `{"forward": {"default": "deny"}}`)
	if _, err := patch(`{}`, admin.ConfigPatch{Replace: true}); err == nil || !strings.Contains(err.Error(), "forward.default") {
		t.Errorf("what the operator patched is taken back: %v", err)
	}
	if _, err := patch(`{"forward": {"default": "deny"}}`, admin.ConfigPatch{Save: true}); err == nil || !strings.Contains(err.Error(), "forward.default") {
		t.Errorf("what the operator did not save is: %v", err)
	}
}

// TestPatchesAtOnceAndStreams has patches of many callers, reloads and tunes beside 200
// streams: each patch is whole, of those with one If-Match one wins, and no stream ends.
func TestPatchesAtOnceAndStreams(t *testing.T) {
	const streams = 200
	release := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "a")
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, "b")
	}))
	defer api.Close()
	r := start(t, api.Listener.Addr().String(), "")
	client := h2c(t)
	var open, all sync.WaitGroup
	var whole atomic.Int32
	for range streams {
		open.Add(1)
		all.Go(func() {
			resp, err := client.Get("http://" + r.addr + "/up/x")
			if err != nil {
				open.Done()
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			first := make([]byte, 1)
			_, err = io.ReadFull(resp.Body, first)
			open.Done()
			rest, err2 := io.ReadAll(resp.Body)
			if err == nil && err2 == nil && string(first)+string(rest) == "ab" {
				whole.Add(1)
			}
		})
	}
	open.Wait()
	tag := r.tag()
	var won atomic.Int32
	var changes sync.WaitGroup
	for i := range 8 {
		changes.Go(func() {
			if status, _, _ := r.patch("", fmt.Sprintf(`{"upstreams": {"up": {"pool": {"max_streams": %d}}}}`, 50+i), http.Header{"If-Match": {tag}}); status == http.StatusOK {
				won.Add(1)
			}
			own := fmt.Sprintf(`{"upstreams": {"own%d": {"url": "http://127.0.0.1:%d", "priority": "batch"}}}`, i, 1000+i)
			if status, body, _ := r.patch("", own, nil); status != http.StatusOK {
				t.Errorf("%d %s", status, body)
			}
			if status, body := r.post([]string{"/v1/reload", "/v1/tune?log.level=warn"}[i%2]); status != http.StatusOK {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	changes.Wait()
	if won.Load() > 1 {
		t.Errorf("%d patches of the same configuration", won.Load())
	}
	for i := range 8 {
		if r.at("upstreams", fmt.Sprintf("own%d", i), "priority") != "batch" {
			t.Errorf("the patch of caller %d is lost", i)
		}
	}
	close(release)
	all.Wait()
	if whole.Load() != streams {
		t.Errorf("%d of %d streams came whole", whole.Load(), streams)
	}
}
