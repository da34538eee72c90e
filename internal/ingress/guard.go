// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"
	"net/http"

	"github.com/warmwire/warmwire/internal/webguard"
)

// guard refuses requests that a foreign web page made. Only origin-form requests
// are looked at: a page cannot make a browser send the proxy form, and inside a
// tunnel Origin is between the app and its server.
func (t *Table) guard(r *http.Request, m Mode) *refusal {
	self := ""
	if m == ModeBaseURL {
		self = r.Host // a page that this listener served itself; for an upstream's Host there is none
	}
	err := webguard.CheckOrigin(r.Header, self, t.origins)
	if err == nil {
		return nil
	}
	ref := &refusal{http.StatusForbidden, webguard.CodeOrigin, err.Error() + ": list it in listen.allow_origins if it may call this listener", m}
	if we, ok := errors.AsType[*webguard.Error](err); ok {
		ref.code, ref.status = we.Code, we.Status
	}
	return ref
}
