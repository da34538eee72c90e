// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netwatch

func (w *Watcher) subscribe() error { return nil }
