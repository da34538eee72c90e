// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"slices"
	"strings"

	"github.com/warmwire/warmwire/internal/config"
)

// A settingsStatus is what GET /v1/settings shows.
type settingsStatus struct {
	Settings []config.Setting  `json:"settings"`
	Values   map[string]string `json:"values"` // by full path
	Tuned    map[string]string `json:"tuned"`  // those that stand over the file's
	File     string            `json:"file"`   // that a save changes; "" = none
}

func (s *Sidecar) settings() settingsStatus {
	now := s.shown.Load()
	tuned := now.over.Tuned
	if tuned == nil {
		tuned = map[string]string{}
	}
	return settingsStatus{config.Settings(), now.Values(), tuned, s.opt.File}
}

// A previewStatus is what a tune would do.
type previewStatus struct {
	Changes []changeStatus `json:"changes"` // empty: nothing would be another
	Reopens []string       `json:"reopens"` // upstreams whose connections are opened anew; what runs ends on the old ones
	Running int            `json:"running"` // requests, tunnels and WebSockets of the upstreams that change; of all, if a setting of all does
}

type changeStatus struct {
	Key  string `json:"key"`
	From string `json:"from"`
	To   string `json:"to"`
}

// preview says what changes would do, and changes nothing. The file is read again, as
// Tune would: what was edited meanwhile takes effect with it, and is listed.
func (s *Sidecar) preview(changes map[string]string) (previewStatus, error) {
	if err := s.mayTune(changes); err != nil {
		return previewStatus{}, err
	}
	now := s.shown.Load()
	next, _, err := s.opt.Load(now.over.Tune(changes))
	if err != nil {
		return previewStatus{}, err
	}
	before, after := now.Values(), next.Values()
	var list []config.Change
	for _, key := range now.Changed(next) {
		list = append(list, config.Change{Key: key, From: before[key], To: after[key]})
	}
	return s.touched(list), nil
}

// touched says what changes mean for what is open and runs.
func (s *Sidecar) touched(list []config.Change) previewStatus {
	p := previewStatus{Changes: []changeStatus{}, Reopens: []string{}}
	touched, all := map[string]bool{}, false
	for _, c := range list {
		p.Changes = append(p.Changes, changeStatus(c))
		rest, ofUpstream := strings.CutPrefix(c.Key, "upstreams.")
		if !ofUpstream {
			all = true
			continue
		}
		name, rel, _ := strings.Cut(rest, ".")
		touched[name] = true
		if rel != "" && config.Reopens(rel) && !slices.Contains(p.Reopens, name) {
			p.Reopens = append(p.Reopens, name)
		}
	}
	for _, i := range s.ingress.Streams() {
		if all || touched[i.Upstream] {
			p.Running++
		}
	}
	return p
}
