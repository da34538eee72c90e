// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
)

// streamRoom is what the budget is charged with for each request as long as it runs:
// its first receive window, and its goroutines and small buffers, as measured.
const streamRoom = bufferctl.DefaultFloor + 8<<10

// socketRoom is the same for a WebSocket, whose connections on both sides, TLS state,
// heartbeats and three goroutines nobody else needs: as measured (docs/heartbeats.md).
const socketRoom = streamRoom + 20<<10

// memoryLimit is limits.memory in bytes.
func memoryLimit(cfg *config.Config) int64 {
	if n := int64(cfg.Limits.Memory); n > 0 {
		return n
	}
	return bufferctl.AutoLimit()
}

// limitHeap has the garbage collector work harder before the process grows beyond the
// budget and what it needs besides, unless somebody else (GOMEMLIMIT) has set a limit.
func (s *Sidecar) limitHeap(cfg *config.Config) {
	if now := debug.SetMemoryLimit(-1); now != math.MaxInt64 && now != s.heapLimit.Load() {
		return
	}
	limit := memoryLimit(cfg)
	limit += max(limit/4, 64<<20) // garbage, code, caches; a guess
	if container, ok := bufferctl.ContainerLimit(); ok {
		limit = min(limit, container-container/10)
	}
	s.heapLimit.Store(limit)
	debug.SetMemoryLimit(limit)
}

// spool is for answers that are taken faster than the app does, nil if they are not.
func (s *Sidecar) spool(cfg *config.Config, u config.Upstream) *bufferctl.SpoolConfig {
	if u.Buffer.Policy != "spool" {
		return nil
	}
	c := s.spoolOf(cfg, u, int64(u.Buffer.SpoolLimit))
	return &c
}

// reattach is for streams that apps come back to, nil if they may not.
func (s *Sidecar) reattach(cfg *config.Config, u config.Upstream) *ingress.Reattach {
	if u.Reattach.Wait <= 0 {
		return nil
	}
	c := s.spoolOf(cfg, u, int64(u.Reattach.Limit))
	c.Keep = (c.Memory + c.File) / 2
	return &ingress.Reattach{Wait: time.Duration(u.Reattach.Wait), Spool: c}
}

// makeSpoolDir makes the folder if some upstream needs it.
func makeSpoolDir(cfg *config.Config) error {
	for _, u := range cfg.Upstreams {
		if u.Buffer.Policy == "spool" || u.Reattach.Wait > 0 {
			if err := os.MkdirAll(cfg.SpoolDir, 0o700); err != nil {
				return fmt.Errorf("spool_dir: %w", err)
			}
			return nil
		}
	}
	return nil
}

func (s *Sidecar) spoolOf(cfg *config.Config, u config.Upstream, limit int64) bufferctl.SpoolConfig {
	memory := min(int64(u.Buffer.StreamLimit), limit)
	return bufferctl.SpoolConfig{Memory: memory, File: limit - memory, Dir: cfg.SpoolDir, Budget: s.memory, OnFault: func(err error) { s.spoolFault(cfg.SpoolDir, err) }}
}

// spoolFaultEvery limits how often a disk that takes nothing is logged; each answer asks it
// again each second.
const spoolFaultEvery = time.Minute

func (s *Sidecar) spoolFault(dir string, err error) {
	now := time.Now().UnixNano()
	if last := s.spoolTold.Load(); now-last > int64(spoolFaultEvery) && s.spoolTold.CompareAndSwap(last, now) {
		s.log.Warn("spool_dir takes nothing: answers have memory only, and their upstreams wait sooner for slow apps", "folder", dir, "error", err.Error())
	}
}

// admit makes room for a request.
func (s *Sidecar) admit(ctx context.Context, _ *ingress.Upstream, webSocket bool) (func(), error) {
	room := int64(streamRoom)
	if webSocket {
		room = socketRoom
	}
	if err := s.memory.Admit(ctx, roomClass(ctx), room); err != nil {
		var full *bufferctl.OverloadError
		if errors.As(err, &full) {
			return nil, laterError{full}
		}
		return nil, err
	}
	return func() { s.memory.Give(room) }, nil
}

// A laterError says when another try makes sense, in the way that ingress asks.
type laterError struct{ *bufferctl.OverloadError }

func (e laterError) RetryAfter() time.Duration { return e.OverloadError.RetryAfter }
