// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestSocketsStayOpen runs the measurement small: every proxy carries its sockets, and
// the report has a row for each.
func TestSocketsStayOpen(t *testing.T) {
	t.Parallel()
	warmwire, err := testenv.Build("..", "cmd/warmwire")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(warmwire))
	s := settings{warmwire: warmwire, sockets: 40, socketsFor: time.Second}
	b, cleanup, err := newBench(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer cleanup()
	rows, err := b.socketRows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := socketReport(&out, s, rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 4 {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		if row.open != s.sockets || row.each <= 0 || !strings.Contains(out.String(), "| "+row.spec.name+" ") {
			t.Errorf("%+v\n%s", row, &out)
		}
	}
}
