// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestShortRun shows that the harness works with every peer; its figures are
// noise.
func TestShortRun(t *testing.T) {
	testenv.Need(t, "nginx")
	testenv.Need(t, "haproxy")
	warmwire, err := testenv.Build("..", "cmd/warmwire")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(warmwire))
	bench, err := testenv.Build("..", "bench")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(bench))
	file := filepath.Join(t.TempDir(), "table.md")
	out, err := exec.Command(bench, "-short", "-warmwire", warmwire, "-out", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	table, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range peerNames {
		if !strings.Contains(string(table), "\n| "+peer+" ") {
			t.Errorf("no row for %s in\n%s", peer, table)
		}
	}
}
