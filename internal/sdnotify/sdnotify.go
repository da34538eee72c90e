// SPDX-License-Identifier: Apache-2.0

// Package sdnotify tells systemd, or whoever else gave a NOTIFY_SOCKET, how this
// process does (sd_notify(3)), and says how often it wants a sign of life
// (sd_watchdog_enabled(3)).
//
// It reads no environment itself and starts nothing. A message that nobody takes is
// an error, which is the caller's to show: nothing waits for the manager. All methods
// may be called at once; those of a nil *Notifier do nothing.
package sdnotify

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// sendLimit is how long a manager that does not read may hold us up (guess: it reads
// at once).
const sendLimit = time.Second

// A Notifier sends messages to one manager.
type Notifier struct{ address string }

// New returns a Notifier for the value of NOTIFY_SOCKET: a path, or @ and an abstract
// name. Nobody listens at "": the Notifier is nil.
func New(socket string) (*Notifier, error) {
	switch {
	case socket == "":
		return nil, nil
	case socket[0] == '/', socket[0] == '@' && len(socket) > 1:
		return &Notifier{socket}, nil
	}
	return nil, fmt.Errorf("NOTIFY_SOCKET=%q: only /path and @name are supported", socket)
}

// Send sends assignments, such as READY=1, as one message.
func (n *Notifier) Send(assignments ...string) error {
	if n == nil {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(sendLimit)) // cannot fail on an open socket
	if _, err := c.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Status is an assignment that shows text in `systemctl status`.
func Status(text string) string { return "STATUS=" + strings.ReplaceAll(text, "\n", " ") }

// Reloading begins a reload, which READY=1 ends. The time lets the manager tell the
// message from one of an earlier reload.
func (n *Notifier) Reloading() error {
	if n == nil {
		return nil
	}
	return n.Send("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(monotonic().Microseconds(), 10))
}

// Stopping begins the end, which may take so long.
func (n *Notifier) Stopping(limit time.Duration) error {
	return n.Send("STOPPING=1", "EXTEND_TIMEOUT_USEC="+strconv.FormatInt(limit.Microseconds(), 10), Status("draining"))
}

// Watchdog returns how often WATCHDOG=1 is to be sent: half of the time in
// WATCHDOG_USEC. 0: not at all, also if WATCHDOG_PID names another process than pid.
func Watchdog(usec, forPID string, pid int) (time.Duration, error) {
	if usec == "" || forPID != "" && forPID != strconv.Itoa(pid) {
		return 0, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
		return 0, fmt.Errorf("WATCHDOG_USEC=%q: not a number of microseconds up to a day", usec)
	}
	return time.Duration(n) * time.Microsecond / 2, nil
}
