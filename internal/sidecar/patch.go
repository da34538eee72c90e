// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmwire/warmwire/internal/admin"
	"github.com/warmwire/warmwire/internal/config"
)

// A patchStatus is what a patch of the configuration did, or would do.
type patchStatus struct {
	Status string `json:"status"` // patched, unchanged or dry_run
	previewStatus
	Restart []string `json:"restart"` // what it changes and takes effect at the next start only
	Saved   bool     `json:"saved"`   // it is in the file
	Until   string   `json:"until,omitempty"`
	ETag    string   `json:"etag"`
}

// unsavedUntil is how long a patch lasts that is not in the file, as what is tuned.
const unsavedUntil = "this process ends: a reload and an upgrade keep it, ?save=true writes it into the file"

// configuration is what is in force, or will be at the next start, and its entity tag: what
// a patch is of.
func (s *Sidecar) configuration() (any, string) {
	now := s.shown.Load().Config
	return now.Tree(), s.tag(now)
}

func (s *Sidecar) tag(c *config.Config) string { return `"` + c.Tag(s.tagKey) + `"` }

// A plan is a patch that was found good.
type plan struct {
	next    *config.Config
	over    config.Over    // that makes next of the file as it is
	settled config.Over    // that makes next of the file as it will be
	edit    config.Editing // of the file
	status  patchStatus
}

// Patch changes the configuration in force as if the patch stood in the file: all of it or
// nothing. What is not saved lasts as long as what is tuned.
func (s *Sidecar) Patch(req admin.ConfigPatch) (any, string, error) {
	patch, err := config.ParsePatch(req.Body)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", admin.ErrMalformed, err)
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if now := s.tag(s.cfg); !req.Match(now) {
		return nil, now, admin.ErrStale
	}
	p, err := s.plan(patch, req)
	if err != nil {
		return nil, "", err
	}
	if req.DryRun {
		p.status.Status, p.status.Saved, p.status.ETag = "dry_run", false, s.tag(p.next)
		return p.status, s.tag(s.cfg), nil
	}
	if err := s.carryOut(p, req.Save); err != nil {
		return nil, "", err
	}
	p.status.ETag = s.tag(s.cfg)
	return p.status, p.status.ETag, nil
}

// plan finds out what a patch does, and whether it can be done and written.
func (s *Sidecar) plan(patch config.Patch, req admin.ConfigPatch) (p plan, err error) {
	base, from := s.cfg, s.over
	file := s.cfg
	if req.Replace || req.Save {
		if file, _, err = s.opt.Load(config.Over{}); err != nil {
			return p, fmt.Errorf("the file by itself: %w", err)
		}
	}
	if err := s.mayPatch(patch, file, req); err != nil {
		return p, err
	}
	if req.Replace {
		base, from = file, config.Over{}
	}
	changes := patch.Unlike(base)
	p.over = from.With(changes)
	if p.next, _, err = s.opt.Load(p.over); err != nil {
		return p, err
	}
	p.settled = p.over
	if req.Save {
		toFile := patch.Unlike(file).Unmasked()
		p.settled = p.over.Without(append(changes.Paths(), toFile.Paths()...))
		p.edit = func(text []byte, getenv config.Env) ([]byte, error) {
			return config.EditPatch(text, toFile, getenv, p.settled, p.next)
		}
		if err := s.write(p, false); err != nil {
			return p, fmt.Errorf("it cannot be saved, and nothing has changed: %w", err)
		}
	}
	p.status = s.patchStatus(p.next)
	p.status.Saved = req.Save
	if !req.Save && len(p.status.Changes) > 0 {
		p.status.Until = unsavedUntil
	}
	if len(p.status.Restart) > 0 && !req.Save && !req.DryRun {
		return p, fmt.Errorf("%s: takes effect at a start only: patch with ?save=true and start Warmwire again, or leave it out", strings.Join(p.status.Restart, ", "))
	}
	return p, nil
}

// mayPatch refuses from beyond loopback what is the operator's to change. The token of such
// a listener is the apps': who may call must not choose where the operator's keys go, nor
// what becomes of the operator's own patches.
func (s *Sidecar) mayPatch(patch config.Patch, file *config.Config, req admin.ConfigPatch) error {
	if !s.adminRemote() {
		return nil
	}
	keys := append(patch.Unlike(s.cfg).Untunable(), patch.Unlike(file).Untunable()...)
	if req.Replace {
		keys = append(keys, s.over.Patch.Untunable()...)
	}
	if slices.Sort(keys); len(keys) > 0 {
		return fmt.Errorf("%s: cannot be changed from beyond loopback: patch through an admin.address on loopback or a Unix socket", strings.Join(slices.Compact(keys), ", "))
	}
	return s.noVariables(patch.Variables())
}

// mayTune is mayPatch for what is tuned.
func (s *Sidecar) mayTune(changes map[string]string) error {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		if config.HasVariable(changes[key]) {
			keys = append(keys, key)
		}
	}
	return s.noVariables(keys)
}

// noVariables refuses from beyond loopback to read the environment, where keys are: what is
// no secret by its own key is shown.
func (s *Sidecar) noVariables(keys []string) error {
	if len(keys) == 0 || !s.adminRemote() {
		return nil
	}
	return fmt.Errorf("%s: ${NAME} is not taken from beyond loopback: write the value out", strings.Join(keys, ", "))
}

// write puts what is planned into the file, or only finds out whether it can be.
func (s *Sidecar) write(p plan, really bool) error {
	if s.opt.EditFile == nil {
		return errors.New("there is no configuration file: write one with `warmwire config default`, and start with it")
	}
	return s.opt.EditFile(func(text []byte, getenv config.Env) ([]byte, error) {
		out, err := p.edit(text, getenv)
		if err != nil || !really {
			return nil, err
		}
		return out, nil
	})
}

// carryOut applies the plan first, since that may fail, then writes the file, and has then
// only the rest stand over it.
func (s *Sidecar) carryOut(p plan, save bool) error {
	before := s.over
	if err := s.reloadLocked(p.over); err != nil {
		return err
	}
	if !save {
		return nil
	}
	if err := s.write(p, true); err != nil {
		return errors.Join(fmt.Errorf("it cannot be saved, and what was in force is again: %w", err), s.reloadLocked(before))
	}
	return s.reloadLocked(p.settled)
}

// TuneAndSave is [Sidecar.Tune] that writes the values into the file too, as they are given,
// and returns its name: all of it or nothing, in turn with every other change.
func (s *Sidecar) TuneAndSave(changes map[string]string) (file string, err error) {
	if err := s.mayTune(changes); err != nil {
		return "", err
	}
	back := make(map[string]string, len(changes))
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		if changes[key] == "" {
			return "", fmt.Errorf("%s: has nothing to save: the file's value is in the file", key)
		}
		back[key] = ""
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	p := plan{over: s.over.Tune(changes), settled: s.over.Tune(back)}
	if p.next, _, err = s.opt.Load(p.over); err != nil {
		return "", err
	}
	p.edit = func(text []byte, getenv config.Env) ([]byte, error) {
		text, err := config.Edit(text, changes, getenv)
		if err != nil {
			return nil, err
		}
		return config.EditPatch(text, config.Patch{}, getenv, p.settled, p.next) // only looks
	}
	if err := s.write(p, false); err != nil {
		return "", fmt.Errorf("it cannot be saved: %w", err)
	}
	return s.opt.File, s.carryOut(p, true)
}

func (s *Sidecar) patchStatus(next *config.Config) patchStatus {
	st := patchStatus{Status: "patched", Restart: []string{}}
	st.previewStatus = s.touched(config.Diff(s.cfg, next))
	// What waits for a start already is not of this patch, and what goes back to that with
	// which the process was started needs none.
	changed := fixedUntilRestart(s.cfg, next)
	for _, name := range fixedUntilRestart(s.first, next) {
		if slices.Contains(changed, name) {
			st.Restart = append(st.Restart, name)
		}
	}
	if len(st.Changes) == 0 {
		st.Status = "unchanged"
	}
	return st
}

// adminRemote says whether the admin listener is bound beyond loopback.
func (s *Sidecar) adminRemote() bool {
	return s.adminLn != nil && !isLoopbackListener(s.adminLn.Addr())
}
