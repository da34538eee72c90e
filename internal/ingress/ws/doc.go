// SPDX-License-Identifier: Apache-2.0

// Package ws relays WebSockets (RFC 6455) frame by frame, after both handshakes.
//
// A [Relay] reads frame headers and passes the rest as it came: text, binary,
// fragments and bits of extensions, masked as the sender masked them. What it
// does beside that is between frames. It answers each side's pings at once, with
// the other side stuck or in the middle of a large message as well; it sends
// pings of its own when a [Policy] asks for them; and it ends both sides with
// close frames that say why. A frame of more than 64 KiB goes on as fragments as
// its bytes come, so that there is always an edge for a control frame nearby; a
// smaller one goes on whole, as it came.
//
// Small messages of the upstream that are as their author wrote them can be shown to
// somebody in passing (Config.Show).
//
// It refuses to decompress, to judge or join messages, to invent an end that the
// upstream did not send, and to guess what bytes mean that are no WebSocket
// frames: such a connection is closed with 1002. Extensions that it does not
// know pass untouched; then frames are not split, because only those who know
// the extension may (RFC 6455 §5.4).
//
// Nothing runs until [Relay.Run] is called. It uses its caller's goroutine and
// one more; a direction that is stuck has another while that lasts. When Run
// returns, both connections are closed and nothing is left behind. All other
// methods are safe to call at any time, at once.
//
// What is held: 4 KiB a direction, up to 64 KiB more while a larger frame comes
// in, and up to Config.ReadAhead for a side that does not take what the other
// sends. At that bound the sender is not read any more, and its pings wait.
package ws
