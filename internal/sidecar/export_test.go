// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"testing"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/transport/flight"
)

// Answers are zero values of what the admin listener marshals for these paths.
func Answers() map[string]any {
	return map[string]any{"/v1/status": status{}, "/v1/streams": []streamStatus{}, "/v1/flights": []flight.Flight{}, "/v1/flights?id": flight.Flight{}, "/v1/requests/slowest": []requestStatus{}, "/v1/requests/interrupted": []requestStatus{}, "/v1/settings": settingsStatus{}, "/v1/tune/preview": previewStatus{}, "/v1/config": patchStatus{}}
}

// Preview is what the admin listener calls.
func (s *Sidecar) Preview(changes map[string]string) (any, error) { return s.preview(changes) }

// PatchByOperator puts a patch in force as one from loopback.
func (s *Sidecar) PatchByOperator(t testing.TB, text string) {
	t.Helper()
	p, err := config.ParsePatch([]byte(text))
	if err == nil {
		s.reloading.Lock()
		defer s.reloading.Unlock()
		err = s.reloadLocked(s.over.With(p))
	}
	if err != nil {
		t.Fatal(err)
	}
}
