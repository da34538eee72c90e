// SPDX-License-Identifier: Apache-2.0

package activation

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// A Passed is a socket for the successor.
type Passed struct {
	Socket  syscall.Conn // a *net.TCPListener, *net.UnixListener or *net.UDPConn
	Foreign bool         // its file, if it has one, is not ours to remove; see [Sockets.Foreign]
}

// ErrUnsupported says that this system does not pass sockets on.
var ErrUnsupported = errors.New("this system does not pass sockets from process to process")

var aLongTimeAgo = time.Unix(1, 0)

// notEOF drops what the end of a pipe says, which is nothing.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
