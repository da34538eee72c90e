// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"strconv"
)

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

func (a *Admin) flights(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Flight == nil {
		notHere().write(w)
		return
	}
	id := uint64(0)
	if text := r.URL.Query().Get("id"); text != "" {
		var err error
		if id, err = strconv.ParseUint(text, 10, 64); err != nil || id == 0 {
			(&refusal{http.StatusBadRequest, "bad_query", "id is the number of a connection"}).write(w)
			return
		}
	}
	f, ok := a.cfg.Flight(id)
	if !ok {
		(&refusal{http.StatusNotFound, "no_flight", "there is no connection of this number any more, and its log was not kept"}).write(w)
		return
	}
	writeJSON(w, http.StatusOK, f)
}

func notHere() *refusal {
	return &refusal{http.StatusNotImplemented, "not_available", "this process does not keep that"}
}
