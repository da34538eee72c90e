// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"fmt"
	"io"
	"os"
	"time"
)

// An output is where lines go. The writer's goroutine owns it once it has taken it;
// others may only interrupt it.
type output struct {
	format Format
	to     io.Writer
	file   *os.File // to, if it is ours to close
}

// open returns the output of c. The file is made if it is not there, for its owner
// only, and always appended to.
func open(c Config, standard io.Writer) (*output, error) {
	if c.File == "" {
		return &output{format: c.Format, to: standard}, nil
	}
	// A pipe without a reader is an error here, not a reason to wait for one.
	f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_APPEND|os.O_CREATE|openWithoutWaiting, 0o600)
	if err != nil {
		return nil, fmt.Errorf("accesslog: %w", err)
	}
	return &output{format: c.Format, to: f, file: f}, nil
}

func (o *output) close() {
	if o != nil && o.file != nil {
		_ = o.file.Close() // every line was written by a call of its own whose error was looked at
	}
}

// interrupt makes a write to a pipe that is not read return. Files have no
// deadlines: what they take they take soon.
func (o *output) interrupt() {
	if o.file != nil {
		_ = o.file.SetWriteDeadline(time.Now())
	}
}

// sameFile says whether a line that was begun in o can be ended in n.
func (o *output) sameFile(n *output) bool {
	if o.file == nil || n.file == nil {
		return o.file == n.file
	}
	was, err := o.file.Stat()
	now, err2 := n.file.Stat()
	return err == nil && err2 == nil && os.SameFile(was, now)
}
