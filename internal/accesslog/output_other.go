// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package accesslog

const openWithoutWaiting = 0
