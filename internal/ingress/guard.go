// SPDX-License-Identifier: Apache-2.0

package ingress

import "net/http"

func (t *Table) guard(r *http.Request, m Mode) *refusal { return nil }
