// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/transport/semantics"
)

// Config is how a connection behaves. The zero value is the default.
type Config struct {
	StreamWindow    int // bytes that a stream may hold for a slow app at first; 0 = 64 KiB
	MaxStreamWindow int // how far that grows on a long fast path; 0 = 1 MiB, at least StreamWindow
	// Budget is charged with what streams may hold beyond the first 16 KiB each, which
	// whoever admits a request has counted; when it has no room, streams hold less.
	// nil = no bound.
	Budget     *bufferctl.Budget
	MaxStreams int // streams at once, if the peer allows more; 0 = what the peer allows

	// AssumedStreams is what the peer is taken to allow until it says so: what it
	// said on an earlier connection, or 0 = 100. One that allows few and is sent many
	// may stop reading until some are over (lighttpd 1.4.69 does).
	AssumedStreams int

	// Priority tells the peer what is urgent, by class: the priority field,
	// PRIORITY_UPDATE, and the weights of RFC 7540.
	Priority bool
	// Class says what a request is; nil = what [WithClass] put in its context.
	Class func(*http.Request) semantics.Class

	SettingsTimeout time.Duration // for the peer's SETTINGS to arrive; 0 = 10 s

	// OnFrame is told of each frame that came, or is queued to leave, with its length; at is
	// in Unix nanoseconds, 0 = now. It must not block. nil = nobody is told.
	OnFrame func(out bool, at int64, kind uint8, stream, length uint32)

	// OnChange is called after Available, InFlight or Err may have changed, with
	// no lock held, by any goroutine. It must not block. nil = nobody is told.
	OnChange func()
}

// Limits that no setting changes.
const (
	maxHeadBytes   = 1 << 20                // of an answer: all its 1xx, its head, and again its trailers
	maxBlockBytes  = maxHeadBytes           // of a coded field block that is still read to keep HPACK in step
	maxBlockFrames = 1024                   // HEADERS and CONTINUATION of one block; a guess
	maxInterim     = 64                     // 1xx before the final answer; a guess
	maxReadFrame   = 16 << 10               // SETTINGS_MAX_FRAME_SIZE of ours: the default, not sent
	initialWindow  = 65535                  // RFC 9113 §6.9.2
	firstWindow    = 16 << 10               // of every stream, whatever the budget says: enough for many tokens
	connWindow     = 16 << 20               // returned at receipt: bounds what is on the way, not memory
	maxWindow      = 1<<31 - 1              // RFC 9113 §6.9.1
	assumedStreams = 100                    // until the peer's SETTINGS: RFC 9113 §6.5.2 recommends no less
	maxStreamID    = 1<<31 - 1              // RFC 9113 §5.1.1
	encoderTable   = 4096                   // bytes of HPACK table that we use if the peer allows more
	maxPending     = 1 << 20                // bytes of heads that wait for a peer that reads nothing
	maxReplies     = 64 << 10               // bytes of answers to the peer's own frames that wait likewise
	goodbye        = 500 * time.Millisecond // for a last GOAWAY to be written; a guess
)

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.StreamWindow = cmp.Or(c.StreamWindow, 64<<10)
	c.MaxStreamWindow = max(cmp.Or(c.MaxStreamWindow, 1<<20), c.StreamWindow)
	c.AssumedStreams = cmp.Or(c.AssumedStreams, assumedStreams)
	c.SettingsTimeout = cmp.Or(c.SettingsTimeout, 10*time.Second)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.StreamWindow < 0 || c.StreamWindow > maxWindow || c.MaxStreamWindow < 0 || c.MaxStreamWindow > maxWindow {
		return fmt.Errorf("h2: stream window %d or its limit %d is not between 1 and %d", c.StreamWindow, c.MaxStreamWindow, maxWindow)
	}
	if c.MaxStreams < 0 || c.AssumedStreams < 0 || c.SettingsTimeout < 0 {
		return fmt.Errorf("h2: negative stream limit %d or settings timeout %v", c.MaxStreams, c.SettingsTimeout)
	}
	return nil
}
