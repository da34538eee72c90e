// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package metrics

func fdsInUse() float64 { return -1 }

func fdsLimit() float64 { return -1 }
