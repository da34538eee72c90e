// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package http1

// initWatch does nothing: without POLLRDHUP a peer's leaving is noticed while
// there is room to read, not behind a full buffer.
func (c *conn) initWatch() {}
