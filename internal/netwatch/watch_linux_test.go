// SPDX-License-Identifier: Apache-2.0

package netwatch

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
)

// The kernel's own events, of a host that moves to another network.
func TestAMoveIsNoticed(t *testing.T) {
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	lab, err := netlab.New(t.Context(), netlab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lab.Close() }()
	var w *Watcher
	if err := lab.Client.Do(func() (err error) {
		w, err = New()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	calls := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx, func(why string) { calls <- why }) })
	defer running.Wait()
	defer cancel()
	early := time.NewTimer(4 * settle)
	defer early.Stop()
	select {
	case why := <-calls:
		t.Fatalf("told before anything changed: %s", why)
	case <-early.C:
	}
	if err := lab.ChangeClientAddress(); err != nil {
		t.Fatal(err)
	}
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	select {
	case <-calls:
	case <-limit.C:
		t.Fatal("the move is not noticed")
	}
}
