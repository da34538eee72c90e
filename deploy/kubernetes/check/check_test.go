// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManifestsAreValid(t *testing.T) {
	names, err := filepath.Glob("../*.yaml")
	if err != nil || len(names) < 2 {
		t.Fatalf("manifests %v, %v; want at least two", names, err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			set, err := decode(t, name, func(s string) string { return s })
			if err != nil {
				t.Fatal(err)
			}
			if len(set.Pods) != 1 || len(set.ConfigMaps) != 1 {
				t.Errorf("%d pods and %d configurations, want 1 and 1", len(set.Pods), len(set.ConfigMaps))
			}
			for _, fault := range set.Faults() {
				t.Error(fault)
			}
		})
	}
}

// TestFaultsAreFound breaks the real manifests in one place each.
func TestFaultsAreFound(t *testing.T) {
	tests := []struct {
		name, file, old, new, want string
	}{
		{"unknown field", "sidecar.yaml", "readinessProbe:", "readynessProbe:", "readynessProbe"},
		{"wrong type", "sidecar.yaml", "replicas: 1", "replicas: one", "replicas"},
		{"unknown kind", "sidecar.yaml", "kind: Deployment", "kind: Deploymint", "not expected"},
		{"selector", "sidecar.yaml", "    matchLabels:\n      app.kubernetes.io/name: app", "    matchLabels:\n      app.kubernetes.io/name: other", "does not match"},
		{"no sidecar", "sidecar.yaml", "restartPolicy: Always #", "# restartPolicy: Always #", "no sidecar"},
		{"http probe", "sidecar.yaml", "exec:\n              command: [/warmwire, health, -c, /etc/warmwire/warmwire.yaml]\n            periodSeconds: 1\n", "httpGet: {path: /readyz, port: 8485}\n            periodSeconds: 1\n", "startup probe is no exec"},
		{"liveness asks readiness", "sidecar.yaml", "--live, ", "", "draining"},
		{"grace too short", "sidecar.yaml", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 20", "grace period of 20 s"},
		{"writable root", "sidecar.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "root file system"},
		{"file not mounted", "sidecar.yaml", "args: [run, -c, /etc/warmwire/warmwire.yaml]", "args: [run, -c, /etc/other/warmwire.yaml]", "mounted from no ConfigMap"},
		{"no memory limit", "sidecar.yaml", "memory: 512Mi", "cpu: 1", "no memory limit"},
		{"policy for others", "node.yaml", "  podSelector:\n    matchLabels:\n      app.kubernetes.io/name: warmwire-node", "  podSelector:\n    matchLabels:\n      app.kubernetes.io/name: warmwire", "NetworkPolicy finds no pod"},
		{"monitor of no port", "node.yaml", "- port: admin", "- port: metrics", `no port named "metrics"`},
		{"monitor's unknown field", "node.yaml", "podMetricsEndpoints", "podMetricEndpoints", "podMetricEndpoints"},
		{"root without need", "node.yaml", "runAsUser: 65532", "runAsUser: 0", "image's user"},
		{"DaemonSet's selector", "socket.yaml", "    matchLabels:\n      app.kubernetes.io/name: warmwire-socket", "    matchLabels:\n      app.kubernetes.io/name: other", "does not match"},
		{"root with capabilities", "socket.yaml", "drop: [ALL]", "drop: [NET_RAW]", "capabilities are kept"},
		{"ordinary sidecar without wait", "job.yaml", "wait: 20s", "wait: 0s", "must be longer than zero"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			set, err := decode(t, "../"+tt.file, func(s string) string {
				if strings.Count(s, tt.old) != 1 {
					t.Fatalf("%q stands %d times in %s, want once", tt.old, strings.Count(s, tt.old), tt.file)
				}
				return strings.Replace(s, tt.old, tt.new, 1)
			})
			got := strings.Join(set.Faults(), "\n")
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("found %q, want a fault that says %q", got, tt.want)
			}
		})
	}
}

func decode(t *testing.T, name string, edit func(string) string) (Set, error) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return Decode(strings.NewReader(edit(string(text))))
}
