// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// What AutoLimit chooses. The lower bound is what a proxy needs to be one.
const (
	autoMost  = 256 << 20 // 256 MiB
	autoLeast = 1 << 20   // 1 MiB
)

// noLimitV1 is above every limit that somebody set: without one, version 1 reports
// the largest int64 rounded down to a page, whatever its size.
const noLimitV1 = 1 << 62

// AutoLimit is a limit for a Budget whose operator named none: 256 MiB, or a
// quarter of the container's memory if that is less. The rest is for what no stream
// holds: connections, tables, the collector's head-room.
func AutoLimit() int64 { return autoLimit(os.DirFS("/")) }

func autoLimit(root fs.FS) int64 {
	if limit, ok := containerLimit(root); ok {
		return max(min(autoMost, limit/4), autoLeast)
	}
	return autoMost
}

// ContainerLimit is the most memory that the kernel lets this process's control
// group have: the least of its own limit and those of the groups it is in. It is
// false where none is set, on systems other than Linux, and where the groups are
// mounted anywhere else than in /sys/fs/cgroup.
func ContainerLimit() (int64, bool) { return containerLimit(os.DirFS("/")) }

func containerLimit(root fs.FS) (int64, bool) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	limit := int64(noLimitV1)
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path, see cgroups(7)
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			limit = min(limit, leastAbove(root, "sys/fs/cgroup", parts[2], "memory.max"))
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if controller == "memory" {
				limit = min(limit, leastAbove(root, "sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes"))
			}
		}
	}
	return limit, limit < noLimitV1
}

// leastAbove is the least limit of a group and of all above it. In a container the
// path may be the host's, of which nothing is mounted; then the mount's top is
// the container's own group.
func leastAbove(root fs.FS, mount, group, file string) int64 {
	limit := int64(noLimitV1)
	for group = path.Join("/", group); ; group = path.Dir(group) { // Join takes the .. of foreign namespaces away
		text, err := fs.ReadFile(root, path.Join(mount, group, file))
		if err == nil { // "max" is no number, and no limit
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
		if group == "/" {
			return limit
		}
	}
}
