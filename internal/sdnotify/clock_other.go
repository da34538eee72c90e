// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sdnotify

import "time"

// monotonic has no meaning where there is no systemd.
func monotonic() time.Duration { return 0 }
