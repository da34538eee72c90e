// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dial

import "net"

// ReadInfo has nothing to read outside Linux.
func ReadInfo(net.Conn) (Info, bool) { return Info{}, false }
