// SPDX-License-Identifier: Apache-2.0

package admin

import "net/http"

func (a *Admin) slowest(w http.ResponseWriter, r *http.Request) {
	if a.cfg.SlowRequests == nil {
		notHere().write(w)
		return
	}
	list, ok := a.cfg.SlowRequests(r.URL.Query().Get("by"))
	if !ok {
		(&refusal{http.StatusBadRequest, "bad_query", "by is duration, first_token or late"}).write(w)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (a *Admin) interrupted(w http.ResponseWriter, _ *http.Request) {
	if a.cfg.InterruptedRequests == nil {
		notHere().write(w)
		return
	}
	writeJSON(w, http.StatusOK, a.cfg.InterruptedRequests())
}

func notHere() *refusal {
	return &refusal{http.StatusNotImplemented, "not_available", "this process does not keep that"}
}
