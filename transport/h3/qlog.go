// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"
)

// tracer writes one file for each connection into dir. QUIC's events name frames
// and their lengths, not what is in them. A file that cannot be made costs the
// trace and nothing else.
func tracer(dir string) func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace {
	return func(_ context.Context, client bool, id quic.ConnectionID) qlogwriter.Trace {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil
		}
		f, err := os.OpenFile(filepath.Join(dir, id.String()+".sqlog"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil
		}
		trace := qlogwriter.NewConnectionFileSeq(&traceFile{Writer: bufio.NewWriter(f), f: f}, client, id)
		go trace.Run() // ends when the connection has
		return trace
	}
}

// A traceFile writes at its end what is left.
type traceFile struct {
	*bufio.Writer
	f *os.File
}

func (t *traceFile) Close() error { return errors.Join(t.Flush(), t.f.Close()) }
