// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/warmwire/warmwire/internal/testenv"
)

// promtool runs it in the folder of the rules.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.Need(t, "promtool"), args...)
	cmd.Dir = "prometheus"
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestRules lets Prometheus read its configuration and the rules, and run their tests.
func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "config", "prometheus.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		if out, err := promtool(t, args...); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	// Each alert is raised in a test.
	var rules struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/alerts.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	tests := read(t, "prometheus/rules_test.yaml")
	for _, r := range rules.Groups[0].Rules {
		if !regexp.MustCompile(`alertname: ` + r.Alert + `\n +exp_alerts:\n +- `).MatchString(tests) {
			t.Errorf("no test raises %s", r.Alert)
		}
	}
}

type rule struct{ Alert, Record, Expr string }

// known are the names that exist: those of docs/metrics.md, whose own test holds them
// against the program, what the Go library adds, and the recorded ones.
func known(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{"up": true, "process_cpu_seconds_total": true, "process_resident_memory_bytes": true}
	name := regexp.MustCompile("`([a-z_]+)`")
	for line := range strings.Lines(read(t, "../docs/metrics.md")) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
			full := "warmwire_" + m[1]
			names[full] = true
			if strings.Contains(cells[2], "histogram") {
				names[full+"_bucket"], names[full+"_sum"], names[full+"_count"] = true, true, true
			}
		}
	}
	if len(names) < 40 {
		t.Fatalf("docs/metrics.md lists only %d names", len(names))
	}
	var recorded struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/recording.yaml")), &recorded); err != nil {
		t.Fatal(err)
	}
	for _, r := range recorded.Groups[0].Rules {
		names[r.Record] = true
	}
	return names
}

var metricName = regexp.MustCompile(`(?:[a-z_]+:)?(?:warmwire|process)_[a-z_]+(?::[a-z0-9_]+)?`)

// unknownNames are those in a query that no metric has.
func unknownNames(names map[string]bool, query string) (unknown []string) {
	for _, n := range metricName.FindAllString(query, -1) {
		if !names[n] {
			unknown = append(unknown, n)
		}
	}
	return unknown
}

func TestRulesNameWhatExists(t *testing.T) {
	names := known(t)
	for _, file := range []string{"recording.yaml", "alerts.yaml"} {
		var rules struct{ Groups []struct{ Rules []rule } }
		if err := yaml.Unmarshal([]byte(read(t, "prometheus/"+file)), &rules); err != nil {
			t.Fatal(err)
		}
		for _, r := range rules.Groups[0].Rules {
			if unknown := unknownNames(names, r.Expr); unknown != nil {
				t.Errorf("%s%s: no metric is named %q", r.Alert, r.Record, unknown)
			}
		}
	}
	if unknownNames(names, "rate(warmwire_reqests_total[5m])") == nil {
		t.Error("a misspelt name passes")
	}
}

type dashboard struct {
	UID         string
	Panels      []panel
	Annotations struct{ List []struct{ Expr string } }
	Templating  struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, RefID string }
}

// dashboardFaults are what is wrong with a dashboard besides its queries' grammar,
// which it returns with Grafana's variables replaced.
func dashboardFaults(text string, names map[string]bool) (faults, queries []string) {
	var d dashboard
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return []string{err.Error()}, nil
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if q, ok := v.Query.(map[string]any); ok {
			faults = append(faults, unknownNames(names, fmt.Sprint(q["query"]))...)
		}
	}
	all := map[string]string{}
	for _, a := range d.Annotations.List {
		all["annotation"] = a.Expr
	}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] {
			faults = append(faults, fmt.Sprintf("panel id %d stands twice", p.ID))
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			faults = append(faults, p.Title+" asks nothing")
		}
		for _, o := range d.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				faults = append(faults, p.Title+" lies over "+o.Title)
			}
		}
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = target.Expr
		}
	}
	variable := regexp.MustCompile(`\$\{?(\w+)\}?`)
	for where, query := range all {
		for _, n := range unknownNames(names, query) {
			faults = append(faults, where+": no metric is named "+n)
		}
		for _, v := range variable.FindAllStringSubmatch(query, -1) {
			if !variables[v[1]] {
				faults = append(faults, where+": no variable is named "+v[1])
			}
		}
		query = strings.ReplaceAll(query, "$__rate_interval", "5m")
		queries = append(queries, variable.ReplaceAllString(query, ".*"))
	}
	slices.Sort(faults)
	return faults, queries
}

// TestDashboard holds the dashboard against the metrics, and lets Prometheus parse each
// query. No Grafana runs here: that it draws them is not checked.
func TestDashboard(t *testing.T) {
	text, names := read(t, "grafana/warmwire.json"), known(t)
	faults, queries := dashboardFaults(text, names)
	for _, f := range faults {
		t.Error(f)
	}
	if out, err := checkQueries(t, queries); err != nil || len(queries) < 20 {
		t.Errorf("%d queries: %v\n%s", len(queries), err, out)
	}
	if _, err := checkQueries(t, []string{"sum(rate(up[5m])"}); err == nil {
		t.Error("a broken query passes")
	}
	for name, f := range map[string]struct{ old, new, want string }{
		"no such metric":   {"warmwire_tokens_total", "warmwire_token_total", "warmwire_token_total"},
		"no such variable": {`instance=~\"$instance\"`, `instance=~\"$machine\"`, "machine"},
		"overlap":          {`"x": 4`, `"x": 3`, "lies over"},
	} {
		broken := strings.ReplaceAll(text, f.old, f.new)
		if found, _ := dashboardFaults(broken, names); broken == text || !strings.Contains(strings.Join(found, "\n"), f.want) {
			t.Errorf("%s: found %q", name, found)
		}
	}
}

// checkQueries lets promtool parse them, as rules.
func checkQueries(t *testing.T, queries []string) (string, error) {
	t.Helper()
	var rules []map[string]string
	for i, q := range queries {
		rules = append(rules, map[string]string{"record": fmt.Sprintf("q%d", i), "expr": q})
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "q", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return promtool(t, "check", "rules", file)
}

type composition struct {
	Services map[string]struct {
		Image           string
		NetworkMode     string `yaml:"network_mode"`
		Volumes         []string
		Ports           []string
		Command         []string
		ReadOnly        bool     `yaml:"read_only"`
		DependsOn       []string `yaml:"depends_on"`
		StopGracePeriod string   `yaml:"stop_grace_period"`
	}
	Volumes map[string]any
}

// composeFaults are what is wrong with a Compose file that shares one namespace.
func composeFaults(text string) (faults []string) {
	var c composition
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return []string{err.Error()}
	}
	for name, s := range c.Services {
		if !strings.Contains(s.Image, ":") || strings.HasSuffix(s.Image, ":latest") {
			faults = append(faults, name+": the image has no version: "+s.Image)
		}
		if name != "app" && s.NetworkMode != "service:app" {
			faults = append(faults, name+" is in a namespace of its own")
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				faults = append(faults, name+" is published to the network: "+p)
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, named := c.Volumes[source]; named {
				continue
			}
			if _, err := os.Stat(filepath.Join("compose", source)); err != nil {
				faults = append(faults, name+": "+err.Error())
			}
		}
		for _, d := range s.DependsOn {
			if _, there := c.Services[d]; !there {
				faults = append(faults, name+" waits for nobody: "+d)
			}
		}
	}
	if w := c.Services["warmwire"]; !w.ReadOnly || w.StopGracePeriod != "40s" {
		faults = append(faults, "warmwire: root file system can be written, or it is killed while it drains")
	}
	return faults
}

// TestCompose holds the file against its own rules: no engine runs here.
func TestCompose(t *testing.T) {
	text := read(t, "compose/compose.yaml")
	for _, f := range composeFaults(text) {
		t.Error(f)
	}
	for name, f := range map[string]struct{ old, new, want string }{
		"no such file":  {"./warmwire.yaml", "./wormwire.yaml", "wormwire"},
		"published":     {"127.0.0.1:3000:3000", "3000:3000", "published"},
		"latest":        {"prometheus:v3.5.0", "prometheus:latest", "no version"},
		"own namespace": {"network_mode: service:app", "network_mode: bridge", "namespace"},
		"killed":        {"stop_grace_period: 40s", "stop_grace_period: 10s", "killed"},
	} {
		broken := strings.Replace(text, f.old, f.new, 1)
		if found := strings.Join(composeFaults(broken), "\n"); broken == text || !strings.Contains(found, f.want) {
			t.Errorf("%s: found %q", name, found)
		}
	}
	if out, err := exec.CommandContext(t.Context(), program(t), "config", "check", "-c", "compose/warmwire.yaml").CombinedOutput(); err != nil {
		t.Errorf("config check: %v\n%s", err, out)
	}
}
