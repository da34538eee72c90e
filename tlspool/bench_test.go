// SPDX-License-Identifier: Apache-2.0

package tlspool

func childBench() int { return 0 }
