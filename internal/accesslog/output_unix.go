// SPDX-License-Identifier: Apache-2.0

//go:build unix

package accesslog

import "syscall"

const openWithoutWaiting = syscall.O_NONBLOCK
