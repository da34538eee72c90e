// SPDX-License-Identifier: Apache-2.0

package sidecar

import "github.com/warmwire/warmwire/transport/flight"

// Answers are zero values of what the admin listener marshals for these paths.
func Answers() map[string]any {
	return map[string]any{"/v1/status": status{}, "/v1/streams": []streamStatus{}, "/v1/flights": []flight.Flight{}, "/v1/flights?id": flight.Flight{}, "/v1/requests/slowest": []requestStatus{}, "/v1/requests/interrupted": []requestStatus{}, "/v1/settings": settingsStatus{}, "/v1/tune/preview": previewStatus{}, "/v1/config": patchStatus{}}
}
