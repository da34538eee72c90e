// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

// chartDir is the chart. Building Helm takes longer than a change may wait, so it is
// rendered here as Helm does: by text/template with sprig and the few functions that
// Helm adds.
const chartDir = "../../helm/warmwire"

type values = map[string]any

// render returns the chart's manifests with values over its own.
func render(t *testing.T, over values) string {
	t.Helper()
	var vals, chart values
	for name, v := range map[string]*values{"values.yaml": &vals, "Chart.yaml": &chart} {
		text, err := os.ReadFile(filepath.Join(chartDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(text, v); err != nil {
			t.Fatal(err)
		}
	}
	merge(vals, over)
	root := template.New("chart").Option("missingkey=error")
	funcs := sprig.TxtFuncMap()
	maps.Copy(funcs, template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := root.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
		"lookup": func(string, string, string, string) values { return values{} },
	})
	root.Funcs(funcs)
	files, err := filepath.Glob(filepath.Join(chartDir, "templates", "*"))
	if err != nil || len(files) < 6 {
		t.Fatalf("templates %v: %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := root.New(filepath.Base(file)).Parse(string(text)); err != nil {
			t.Fatal(err)
		}
	}
	data := values{
		"Values": vals, "Release": values{"Name": "here", "Namespace": "apps", "Service": "Helm"},
		"Chart": values{"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
	}
	var out bytes.Buffer
	for _, file := range files {
		if filepath.Ext(file) == ".tpl" {
			continue
		}
		var one bytes.Buffer
		if err := root.ExecuteTemplate(&one, filepath.Base(file), data); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(one.String()) != "" && filepath.Ext(file) == ".yaml" {
			fmt.Fprintf(&out, "---\n%s\n", one.String())
		}
	}
	return out.String()
}

func merge(into, from values) {
	for k, v := range from {
		if sub, ok := v.(values); ok {
			if old, ok := into[k].(values); ok {
				merge(old, sub)
				continue
			}
		}
		into[k] = v
	}
}

func TestChart(t *testing.T) {
	tests := []struct {
		name            string
		over            values
		secrets, beside int
	}{
		{"defaults", nil, 1, 1},
		{"a token of the operator, a monitor, no policy", values{"tokenSecret": "mine", "podMonitor": values{"enabled": true}, "networkPolicy": values{"enabled": false}}, 0, 1},
		{"all", values{"podMonitor": values{"enabled": true}, "nodeSelector": values{"kubernetes.io/os": "linux"}, "env": []any{values{"name": "OPENAI_API_KEY", "value": "x"}}}, 1, 2},
		{"socket", values{"mode": "socket"}, 0, 0},
		{"configuration", values{"config": values{"limits": values{"memory": "128MiB"}, "dns": values{"cache_file": "none", "mode": "system_first"}}}, 1, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := render(t, tt.over)
			set, err := Decode(strings.NewReader(text))
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			for _, fault := range set.Faults() {
				t.Error(fault)
			}
			if len(set.Pods) != 1 || len(set.ConfigMaps) != 1 || len(set.Secrets) != tt.secrets || len(set.selected) != tt.beside {
				t.Errorf("%d pods, %d configurations, %d secrets, %d policies and monitors in\n%s", len(set.Pods), len(set.ConfigMaps), len(set.Secrets), len(set.selected), text)
			}
			var config map[string]any
			if err := yaml.UnmarshalStrict([]byte(set.ConfigMaps[0].Data["warmwire.yaml"]), &config); err != nil {
				t.Errorf("configuration: %v in\n%s", err, set.ConfigMaps[0].Data["warmwire.yaml"])
			}
		})
	}
	if !strings.Contains(render(t, values{"drain": values{"timeout": "90s"}}), "timeout: 90s") {
		t.Error("a value is not used")
	}
	set, err := Decode(strings.NewReader(render(t, values{"drain": values{"timeout": "90s"}})))
	if err != nil || !slices.ContainsFunc(set.Faults(), func(f string) bool { return strings.Contains(f, "grace period") }) {
		t.Errorf("a drain that is too long passes: %v", err)
	}
}
