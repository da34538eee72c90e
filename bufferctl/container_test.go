// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestContainerLimit(t *testing.T) {
	const mib = 1 << 20
	tests := []struct {
		name  string
		files map[string]string
		limit int64 // 0 = none
		auto  int64
	}{
		{name: "not Linux", auto: 256 * mib},
		{"version 2, own group", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "67108864\n",
		}, 64 * mib, 16 * mib},
		{"version 2, no limit", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n",
		}, 0, 256 * mib},
		{"version 2, the least of all above", map[string]string{
			"proc/self/cgroup":                                   "0::/kubepods.slice/pod1/app\n",
			"sys/fs/cgroup/memory.max":                           "max\n",
			"sys/fs/cgroup/kubepods.slice/memory.max":            "8589934592\n",
			"sys/fs/cgroup/kubepods.slice/pod1/memory.max":       "134217728\n",
			"sys/fs/cgroup/kubepods.slice/pod1/app/memory.max":   "536870912\n",
			"sys/fs/cgroup/kubepods.slice/pod1/other/memory.max": "1024\n",
		}, 128 * mib, 32 * mib},
		{"version 2, path of the host, mount of the container", map[string]string{
			"proc/self/cgroup":         "0::/docker/0123\n",
			"sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1024 * mib, 256 * mib},
		{"version 2, path outside the namespace", map[string]string{
			"proc/self/cgroup":         "0::/../../other\n",
			"sys/other/memory.max":     "1024\n",
			"sys/fs/cgroup/memory.max": "268435456\n",
		}, 256 * mib, 64 * mib},
		{"version 1", map[string]string{
			"proc/self/cgroup":                                       "11:cpu,cpuacct:/docker/0123\n4:memory:/docker/0123\n0::/docker/0123\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":             "9223372036854771712\n",
			"sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes": "134217728\n",
			"sys/fs/cgroup/cpu,cpuacct/memory.limit_in_bytes":        "1024\n",
		}, 128 * mib, 32 * mib},
		{"version 1, no limit", map[string]string{
			"proc/self/cgroup":                           "4:hugetlb,memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0, 256 * mib},
		{"version 1, a path with a colon", map[string]string{
			"proc/self/cgroup": "4:memory:/a:b\n",
			"sys/fs/cgroup/memory/a:b/memory.limit_in_bytes": "67108864\n",
		}, 64 * mib, 16 * mib},
		{"very small", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "2097152\n",
		}, 2 * mib, mib},
		{"nonsense", map[string]string{
			"proc/self/cgroup":         "0::/\nx\n::\n",
			"sys/fs/cgroup/memory.max": "-5\n",
		}, 0, 256 * mib},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				name = filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			limit, ok := containerLimit(os.DirFS(root))
			if ok != (tt.limit > 0) || ok && limit != tt.limit {
				t.Errorf("limit %d, %v, want %d", limit, ok, tt.limit)
			}
			if got := autoLimit(os.DirFS(root)); got != tt.auto {
				t.Errorf("automatic: %d, want %d", got, tt.auto)
			}
		})
	}
}

// On the machine that this runs on, too.
func TestAutoLimitIsSomething(t *testing.T) {
	limit, ok := ContainerLimit()
	if auto := AutoLimit(); auto < autoLeast || auto > autoMost || ok && auto > max(limit/4, autoLeast) {
		t.Errorf("automatic: %d at a container's limit of %d (%v)", auto, limit, ok)
	}
}

func FuzzContainerLimit(f *testing.F) {
	f.Add("0::/a/b\n", "max\n")
	f.Add("4:memory:/../a\n0::/\n", "67108864\n")
	f.Add("4:cpu,memory:relative//x", "9223372036854775808")
	f.Fuzz(func(t *testing.T, groups, limit string) {
		if strings.Count(groups, "/") > 1000 {
			t.Skip() // a path is at most 4096 bytes long
		}
		root := fstest.MapFS{
			"proc/self/cgroup":                           {Data: []byte(groups)},
			"sys/fs/cgroup/memory.max":                   {Data: []byte(limit)},
			"sys/fs/cgroup/memory/memory.limit_in_bytes": {Data: []byte(limit)},
		}
		if n, ok := containerLimit(root); ok && (n <= 0 || n >= noLimitV1) {
			t.Errorf("limit %d", n)
		}
		if n := autoLimit(root); n < autoLeast || n > autoMost {
			t.Errorf("automatic: %d", n)
		}
	})
}
