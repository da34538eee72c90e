// SPDX-License-Identifier: Apache-2.0

package admin

import (
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

const indexText = `Warmwire admin listener

GET  /healthz     200 while the process answers
GET  /readyz      200 when requests are taken, else 503 and the reason
GET  /metrics     metrics in the Prometheus formats
GET  /v1/status   JSON
GET  /v1/streams  JSON: what runs, and how far behind its app is
GET  /v1/events   status and streams each second, as server-sent events
GET  /v1/requests/slowest  of the last hour, ?by=duration, first_token or late: where their time went
GET  /v1/requests/interrupted  the last that broke off
GET  /v1/flights  connections to upstreams; ?id=NUMBER: what happened on one lately
GET  /v1/settings what POST /v1/tune takes, and the values in force
GET  /v1/config   the configuration, secrets masked, with an ETag; "restart" in /v1/status: what of it waits for a start
PATCH /v1/config  JSON Merge Patch of it; ?dry_run=true, ?save=true, ?replace=true
GET  /v1/openapi.json  this list for programs (OpenAPI 3.1)
POST /v1/dns/flush   forget what DNS said of ?name=HOST, or of all names
POST /v1/tls/flush   forget the TLS sessions with ?name=HOST, or with all
POST /v1/intercept/clear  intercept ?host=HOST again, or all, that was left alone
POST /v1/reload   read the configuration again
POST /v1/tune     ?KEY=VALUE: change settings until the next start; &save=true: in the file too
POST /v1/tune/preview ?KEY=VALUE: what that would change
POST /v1/upgrade  start the program anew, as it is on disk now, and hand over to it
POST /v1/quit     drain and exit

POST and PATCH need Authorization: Bearer with the token in admin.token_file. POST
takes no body, or {} with Content-Type: application/json; PATCH a body of type
application/merge-patch+json or application/json.
`

// openAPI describes the paths, their parameters and answers. It is generated from the
// types that are marshalled (internal/sidecar's tests).
//
//go:embed openapi.json
var openAPI []byte

const plainText = "text/plain; charset=utf-8"

func (a *Admin) healthz(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, plainText, []byte("ok\n"))
}

func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := a.cfg.Ready(); err != nil {
		(&refusal{http.StatusServiceUnavailable, "not_ready", err.Error()}).write(w)
		return
	}
	write(w, http.StatusOK, plainText, []byte("ready\n"))
}

func (a *Admin) status(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.cfg.Status())
}

func (a *Admin) streams(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.cfg.Streams())
}

func (a *Admin) openAPI(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, "application/vnd.oai.openapi+json;version=3.1", openAPI)
}

// reload answers 422 when the new configuration was refused: the running one
// stays as it was.
func (a *Admin) reload(w http.ResponseWriter, _ *http.Request) {
	if a.cfg.Reload == nil {
		(&refusal{http.StatusNotImplemented, "nothing_to_reload", "Warmwire runs without a configuration file: start it again with -c FILE"}).write(w)
		return
	}
	if err := a.cfg.Reload(); err != nil {
		(&refusal{http.StatusUnprocessableEntity, "reload_failed", err.Error()}).write(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "reloaded"})
}

// upgrade answers 409 when the successor did not come up: this process goes on.
func (a *Admin) upgrade(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Upgrade == nil {
		(&refusal{http.StatusNotImplemented, "not_upgradable", "this Warmwire cannot be replaced while it runs"}).write(w)
		return
	}
	if err := a.cfg.Upgrade(r.Context()); err != nil {
		(&refusal{http.StatusConflict, "upgrade_failed", err.Error()}).write(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "upgraded"})
}

// flushDNS takes the name from the query, as calls have no body.
func (a *Admin) flushDNS(w http.ResponseWriter, r *http.Request) {
	if a.cfg.FlushDNS == nil {
		(&refusal{http.StatusNotImplemented, "no_dns", "this Warmwire looks no names up"}).write(w)
		return
	}
	name := r.URL.Query().Get("name")
	a.cfg.FlushDNS(name)
	writeJSON(w, http.StatusOK, map[string]string{"status": "flushed", "name": name})
}

func (a *Admin) flushTLS(w http.ResponseWriter, r *http.Request) {
	if a.cfg.FlushTLS == nil {
		(&refusal{http.StatusNotImplemented, "no_tls", "this Warmwire keeps no TLS sessions"}).write(w)
		return
	}
	name := r.URL.Query().Get("name")
	writeJSON(w, http.StatusOK, map[string]any{"status": "flushed", "name": name, "sessions": a.cfg.FlushTLS(name)})
}

func (a *Admin) clearIntercept(w http.ResponseWriter, r *http.Request) {
	if a.cfg.ClearIntercept == nil {
		(&refusal{http.StatusNotImplemented, "no_interception", "this Warmwire intercepts nothing"}).write(w)
		return
	}
	host := r.URL.Query().Get("host")
	writeJSON(w, http.StatusOK, map[string]any{"status": "cleared", "host": host, "hosts": a.cfg.ClearIntercept(host)})
}

// tune takes keys and values from the query, as calls have no body.
func (a *Admin) tune(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Tune == nil {
		notTunable.write(w)
		return
	}
	save := false
	answerChanges(w, r, &save, func(changes map[string]string) (any, error) {
		answer := map[string]any{"status": "tuned", "changes": changes}
		if !save {
			return answer, a.cfg.Tune(changes)
		}
		file, err := a.cfg.TuneAndSave(changes)
		answer["saved"] = file
		return answer, err
	})
}

// preview says what tune would do.
func (a *Admin) preview(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Preview == nil {
		notTunable.write(w)
		return
	}
	answerChanges(w, r, nil, a.cfg.Preview)
}

func (a *Admin) settings(w http.ResponseWriter, _ *http.Request) {
	if a.cfg.Settings == nil {
		notTunable.write(w)
		return
	}
	writeJSON(w, http.StatusOK, a.cfg.Settings())
}

var notTunable = &refusal{http.StatusNotImplemented, "not_tunable", "this Warmwire was started without a configuration to read again"}

// answerChanges reads keys and values from the query, and answers with what f says of
// them. Where save is not nil, save=true sets it: no setting has that name.
func answerChanges(w http.ResponseWriter, r *http.Request, save *bool, f func(changes map[string]string) (any, error)) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	changes := make(map[string]string, len(query))
	for key, values := range query {
		if len(values) != 1 {
			err = fmt.Errorf("%s stands twice", key)
		}
		if key != "save" || save == nil {
			changes[key] = values[0]
		} else if *save = values[0] == "true"; !*save && values[0] != "false" {
			err = errors.New("save is neither true nor false")
		}
	}
	if err != nil || len(changes) == 0 {
		(&refusal{http.StatusBadRequest, "bad_query", "write POST /v1/tune?KEY=VALUE, such as upstreams.openai.retry.budget=0.1; an empty value takes the file's back, and save=true writes the others into it"}).write(w)
		return
	}
	what, err := f(changes)
	if err != nil {
		(&refusal{http.StatusUnprocessableEntity, "tune_failed", err.Error()}).write(w)
		return
	}
	writeJSON(w, http.StatusOK, what)
}

// quit sends its answer before the drain begins, because the drain may be over
// before an answer would be out.
func (a *Admin) quit(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "close")
	writeJSON(w, http.StatusAccepted, map[string]string{"status": "draining"})
	_ = http.NewResponseController(w).Flush() // a caller that is gone still wants the exit
	a.cfg.Quit()
}
