// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

var errStringLength = hpack.ErrStringLength

func (c *Conn) onSettings(f *http2.SettingsFrame) error {
	if err := c.useless(1); err != nil {
		return err
	}
	if f.IsAck() {
		if c.in.settingsSent.IsZero() {
			return nil
		}
		c.sawRTT(time.Since(c.in.settingsSent))
		c.in.settingsSent = time.Time{}
		return nil
	}
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return nil
	}
	first := !c.peer.seen
	if first {
		c.peer.maxStreams = assumedStreams // unless it says otherwise now
	}
	err := f.ForeachSetting(func(s http2.Setting) error { return c.applyLocked(s, first) })
	if err == nil {
		if first {
			c.peer.seen = true
			c.in.settingsTimer.Stop()
			close(c.ready)
		}
		err = c.replyLocked(func(w *http2.Framer) error { return w.WriteSettingsAck() })
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	c.changed()
	return nil
}

// applyLocked is RFC 9113 §6.5.2 for a client.
func (c *Conn) applyLocked(s http2.Setting, first bool) error {
	if err := s.Valid(); err != nil {
		return err
	}
	p := &c.peer
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.henc.SetMaxDynamicTableSizeLimit(s.Val)
		c.henc.SetMaxDynamicTableSize(min(s.Val, encoderTable))
	case http2.SettingEnablePush:
		if s.Val != 0 {
			return violation(http2.ErrCodeProtocol, "a server enables push")
		}
	case http2.SettingMaxConcurrentStreams:
		p.maxStreams = s.Val
	case http2.SettingInitialWindowSize:
		return c.initialWindowLocked(int64(s.Val))
	case http2.SettingMaxFrameSize:
		p.maxFrame = int(s.Val)
	case http2.SettingMaxHeaderListSize:
		p.maxHeaderList = uint64(s.Val)
	case http2.SettingEnableConnectProtocol:
		if p.connect && s.Val == 0 {
			return violation(http2.ErrCodeProtocol, "extended CONNECT is taken back") // RFC 8441 §3
		}
		p.connect = s.Val == 1
	case http2.SettingNoRFC7540Priorities:
		if !first && p.noRFC7540 != (s.Val == 1) {
			return violation(http2.ErrCodeProtocol, "the scheme of priorities is changed") // RFC 9218 §2.1
		}
		p.noRFC7540 = s.Val == 1
	}
	return nil
}

// initialWindowLocked moves the send windows of all streams, which may become
// negative (RFC 9113 §6.9.2).
func (c *Conn) initialWindowLocked(v int64) error {
	delta := v - c.peer.initialWindow
	c.peer.initialWindow = v
	for _, s := range c.streams {
		s.sendWindow += delta
		if s.sendWindow > maxWindow {
			return violation(http2.ErrCodeFlowControl, "SETTINGS makes a window too large")
		}
		if s.offered && s.sendWindow > 0 {
			c.uploads.add(s)
		}
	}
	c.out.wake.Signal()
	return nil
}

func (c *Conn) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	if err := c.useless(1); err != nil {
		return err
	}
	if f.StreamID == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sendWindow += int64(f.Increment)
		if c.sendWindow > maxWindow {
			return violation(http2.ErrCodeFlowControl, "the connection's window is too large")
		}
		c.out.wake.Signal()
		return nil
	}
	s, err := c.find(f.StreamID)
	if s == nil || err != nil {
		return err
	}
	c.mu.Lock()
	s.sendWindow += int64(f.Increment)
	over := s.sendWindow > maxWindow
	if s.offered && s.sendWindow > 0 && !over {
		c.uploads.add(s)
		c.out.wake.Signal()
	}
	c.mu.Unlock()
	if over {
		s.broke(kindProtocol, http2.ErrCodeFlowControl, "it makes the stream's window too large")
	}
	return nil
}

func (c *Conn) onReset(f *http2.RSTStreamFrame) error {
	s, err := c.find(f.StreamID)
	if err != nil {
		return err
	}
	if f.ErrCode == http2.ErrCodeEnhanceYourCalm {
		c.calm.Store(true)
	}
	if s == nil {
		return c.useless(1)
	}
	c.mu.Lock()
	complete := s.remoteEnd // then only the upload is unwanted (RFC 9113 §8.1)
	tunnelled := s.tunnel != noTunnel
	c.dropLocked(s)
	c.restLocked()
	c.mu.Unlock()
	if complete && !tunnelled {
		if s.upload != nil {
			s.upload.Stop(nil)
		}
		c.changed()
		return nil
	}
	fail := resetBy(f.ErrCode, s.sent.Load(), s.read.final || s.read.interim > 0)
	if s.read.final {
		fail = fault.Cut(fail)
	}
	s.settle(fail, false)
	return c.useless(1)
}

// onGoAway lets the streams up to the last id go on, and hands those above back
// as not processed (RFC 9113 §6.8).
func (c *Conn) onGoAway(f *http2.GoAwayFrame) error {
	if err := c.useless(1); err != nil {
		return err
	}
	why := &fault.Error{In: "send", Kind: kindClosed, Err: errors.New("the upstream is closing the connection (GOAWAY)")}
	if f.ErrCode != http2.ErrCodeNo {
		why.Err = fmt.Errorf("the upstream is closing the connection (GOAWAY, %v)", f.ErrCode)
	}
	if f.ErrCode == http2.ErrCodeEnhanceYourCalm {
		c.calm.Store(true)
	}
	c.mu.Lock()
	c.lastID = min(c.lastID, f.LastStreamID) // it must not grow
	var unprocessed []*stream
	for id, s := range c.streams {
		if id > c.lastID {
			unprocessed = append(unprocessed, s)
			c.dropLocked(s)
		}
	}
	c.mu.Unlock()
	for _, s := range unprocessed {
		if s.read.final { // it lies: there is an answer
			s.settle(fault.Cut(why), false)
			continue
		}
		s.settle(fault.Of(why, s.read.interim > 0), false)
	}
	c.mu.Lock()
	c.closeLocked(why)
	c.mu.Unlock()
	c.changed()
	return nil
}

func (c *Conn) onPing(f *http2.PingFrame) error {
	c.mu.Lock()
	if f.IsAck() {
		ours := c.answeredLocked(f.Data)
		c.mu.Unlock()
		if ours {
			return nil
		}
		return c.useless(1)
	}
	err := c.replyLocked(func(w *http2.Framer) error { return w.WritePing(true, f.Data) })
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.useless(1)
}
