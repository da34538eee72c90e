// SPDX-License-Identifier: Apache-2.0

// Package layer wraps the body of an answer for a layer around an [http.RoundTripper]
// that wants to know how the answer goes, and keeps what the body can do besides: write
// itself ([io.WriterTo]), be the socket of a WebSocket, say what it has buffered.
//
// It reads, holds and changes no byte. [Body] starts nothing; what it returns is used as
// bodies are: one Read or WriteTo at a time, Close at any time, and the same holds for
// the calls of the [Watcher].
package layer
