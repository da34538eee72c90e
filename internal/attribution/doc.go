// SPDX-License-Identifier: Apache-2.0

// Package attribution says where the time of an answer went: whether its provider was
// silent, a hop held events back, the network was late, or the app did not read.
//
// A [Stream] is told when bytes came and when the app had taken them, and books every
// nanosecond between on one of four parts, so that these sum to the time from its
// beginning to its end exactly. What the relay cannot see by itself it asks its
// [Source] for, and only after a silence that does not fit the stream, or once a
// second: what the connection shows of its path ([Evidence]), and whether the app had
// something left to read.
//
// It is arithmetic: it reads no clock, starts nothing, knows no protocol and sees no
// payload. What it says of silences is an inference from what reached this end. It
// cannot tell a provider's own front end that collects events from another hop
// that does, and a loss whose repair is shorter than the usual gap counts as the
// provider's time.
//
// A Stream belongs to one goroutine. Its size is fixed.
package attribution
