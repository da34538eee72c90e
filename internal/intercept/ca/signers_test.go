// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// The next authority is handed out before it signs, signs when its time has come, and
// the old one stays until it is retired; in memory and in a folder alike.
func TestARotationOverlaps(t *testing.T) {
	for name, dir := range map[string]string{"memory": "", "folder": t.TempDir() + "/ca"} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			cfg := Config{Hosts: []string{"api.example"}, Now: clock.now}
			var a *Authority
			if dir == "" {
				a = newCA(t, cfg)
			} else {
				a = openCA(t, dir, cfg)
			}
			first := issuer(t, a, "api.example")
			if err := a.Rotate(clock.t.Add(48 * time.Hour)); err != nil {
				t.Fatal(err)
			}
			if err := a.Rotate(time.Time{}); !errors.Is(err, ErrNextExists) {
				t.Errorf("a second rotation: %v", err)
			}
			if err := a.Retire(); !errors.Is(err, ErrNoOld) {
				t.Errorf("retiring the active one: %v", err)
			}
			second := Fingerprint(a.Certificates()[1])
			for _, step := range []struct {
				after  time.Duration
				issuer string
				roles  []Role
			}{
				{0, first, []Role{Active, Next}},
				{48*time.Hour - 1, first, []Role{Active, Next}},
				{1, second, []Role{Old, Active}},
				{-1, first, []Role{Active, Next}}, // the clock was put back
				{1, second, []Role{Old, Active}},
			} {
				clock.t = clock.t.Add(step.after)
				if got := issuer(t, a, "api.example"); got != step.issuer {
					t.Errorf("%v later: signed by %.8s, want %.8s", step.after, got, step.issuer)
				}
				if got := roles(t, a); !slices.Equal(got, step.roles) {
					t.Errorf("%v later: %v, want %v", step.after, got, step.roles)
				}
			}
			clock.t = clock.t.Add(time.Second)
			rotateAgain(t, a, second)
		})
	}
}

// rotateAgain goes on while the first authority is still there.
func rotateAgain(t *testing.T, a *Authority, second string) {
	t.Helper()
	if err := a.Switch(); !errors.Is(err, ErrNoNext) {
		t.Errorf("switching to none: %v", err)
	}
	if err := a.Rotate(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if got, want := roles(t, a), []Role{Old, Active, Next}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if err := a.Switch(); err != nil {
		t.Fatal(err)
	}
	third := Fingerprint(a.Certificates()[2])
	if got := issuer(t, a, "api.example"); got != third || third == second {
		t.Errorf("after the switch signed by %.8s, want %.8s", got, third)
	}
	if err := a.Rotate(time.Time{}); !errors.Is(err, ErrOldExists) {
		t.Errorf("a fourth authority: %v", err)
	}
	if err := a.Retire(); err != nil {
		t.Fatal(err)
	}
	if got := a.Certificates(); len(got) != 1 || Fingerprint(got[0]) != third {
		t.Errorf("%d are left after retiring", len(got))
	}
}

// A host that was listed later needs a rotation; the next authority signs for it at
// once, and the active one goes on for the others.
func TestAHostListedLater(t *testing.T) {
	dir, clock := t.TempDir()+"/ca", newClock()
	first := issuer(t, openCA(t, dir, Config{Hosts: []string{"api.example"}, Now: clock.now}), "api.example")

	a := openCA(t, dir, Config{Hosts: []string{"api.example", "eu.api.example", "new.example"}, Now: clock.now})
	if err := a.Covers("api.example", "eu.api.example"); err != nil {
		t.Errorf("what is permitted: %v", err)
	}
	err := a.Covers("api.example", "NEW.example")
	if e, ok := errors.AsType[*UncoveredError](err); !ok || !slices.Equal(e.Hosts, []string{"new.example"}) || !errors.Is(err, ErrUncovered) {
		t.Errorf("Covers: %v, want an UncoveredError of new.example", err)
	}
	if err := a.Covers("*.example"); !errors.Is(err, ErrInvalid) {
		t.Errorf("Covers of a pattern: %v", err)
	}
	if _, err := a.Certificate("new.example"); !errors.Is(err, ErrUncovered) {
		t.Errorf("Certificate: %v, want ErrUncovered", err)
	}
	if got := issuer(t, a, "eu.api.example"); got != first {
		t.Errorf("signed by %.8s, want %.8s", got, first)
	}

	if err := a.Rotate(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Covers("api.example", "new.example"); err != nil {
		t.Errorf("after the rotation: %v", err)
	}
	next := Fingerprint(a.Certificates()[1])
	if got := issuer(t, a, "new.example"); got != next {
		t.Errorf("the new host is signed for by %.8s, want %.8s", got, next)
	}
	if got := issuer(t, a, "api.example"); got != first {
		t.Errorf("the old host is signed for by %.8s, want %.8s", got, first)
	}
}

// An active authority that has ended leaves its hosts to the next one.
func TestTheNextOneServesWhenTheActiveOneHasEnded(t *testing.T) {
	clock := newClock()
	a := newCA(t, Config{Hosts: []string{"api.example"}, Now: clock.now, Validity: 10 * 24 * time.Hour})
	clock.t = clock.t.Add(7 * 24 * time.Hour)
	if err := a.Rotate(time.Time{}); err != nil {
		t.Fatal(err)
	}
	clock.t = clock.t.Add(2 * 24 * time.Hour)
	if got, next := issuer(t, a, "api.example"), Fingerprint(a.Certificates()[1]); got != next {
		t.Errorf("signed by %.8s, want %.8s", got, next)
	}
}
