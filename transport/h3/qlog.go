// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"
)

// maxTrace bounds what is kept of a connection's trace: some hundred packets.
const maxTrace = 64 << 10

// A trace is what happened on a connection lately, as qlog: QUIC's events name frames and
// their lengths, not what is in them. It stays in memory, and is a file once it is to be
// kept.
type trace struct {
	dir  string
	mu   sync.Mutex // guards the fields below
	name string
	head []byte // the file's first record
	tail []byte // the newest records, each begun by a separator
	kept bool
}

// tracer is the library's hook.
func (t *trace) tracer(_ context.Context, client bool, id quic.ConnectionID) qlogwriter.Trace {
	t.mu.Lock()
	t.name = id.String() + ".sqlog"
	t.mu.Unlock()
	seq := qlogwriter.NewConnectionFileSeq(t, client, id)
	go seq.Run() // ends when the connection has
	return seq
}

// Write takes a part of a record; the first is the head as a whole.
func (t *trace) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.head == nil {
		t.head = bytes.Clone(p)
		return len(p), nil
	}
	t.tail = append(t.tail, p...)
	if len(t.tail) > maxTrace {
		rest := t.tail[len(t.tail)-maxTrace/2:]
		from := max(bytes.IndexByte(rest, qlogwriter.RecordSeparator), 0)
		t.tail = t.tail[:copy(t.tail, rest[from:])]
	}
	return len(p), nil
}

// Close writes the end of what is kept.
func (t *trace) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept {
		return t.writeLocked()
	}
	return nil
}

// keep makes it a file, which gets the connection's end too. A file that cannot be made
// costs the trace and nothing else.
func (t *trace) keep() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.kept && t.name != "" {
		t.kept = t.writeLocked() == nil
	}
}

func (t *trace) writeLocked() error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.dir, t.name), t.textLocked(), 0o600)
}

func (t *trace) textLocked() []byte { return append(bytes.Clone(t.head), t.tail...) }

// KeepTrace writes the trace into [Config.QlogDir], if there is one.
func (c *Conn) KeepTrace() { c.cfg.trace.keep() }

// Trace is what is known of the connection's last packets, as qlog (JSON-SEQ); "" without
// [Config.QlogDir].
func (c *Conn) Trace() string {
	t := c.cfg.trace
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.textLocked())
}
