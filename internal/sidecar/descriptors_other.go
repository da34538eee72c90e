// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package sidecar

func descriptorLimit() (uint64, bool) { return 0, false }
