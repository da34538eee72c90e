// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Errors of [Config.Patch] that have a status of their own.
var (
	ErrMalformed = errors.New("the body is no patch")
	ErrStale     = errors.New("the configuration is another than If-Match says: get it again")
)

// maxPatch is a quarter of what a configuration file may have, and far above sensible ones.
const maxPatch = 256 << 10

// patchTypes are those of a patch's body, the standard one first (RFC 7396 §4).
var patchTypes = []string{"application/merge-patch+json", "application/json"}

// A ConfigPatch is a change of the configuration.
type ConfigPatch struct {
	Body    []byte
	Match   func(etag string) bool // says whether the configuration with this entity tag is the one that is meant
	DryRun  bool                   // only say what it would do
	Save    bool                   // write it into the file too
	Replace bool                   // in place of all patches before that were not saved
}

func (a *Admin) configuration(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Configuration == nil {
		notHere().write(w)
		return
	}
	body, etag := a.cfg.Configuration()
	w.Header().Set("ETag", etag)
	w.Header().Set("Accept-Patch", strings.Join(patchTypes, ", ")) // RFC 5789 §3.1
	if tags := r.Header.Values("If-None-Match"); len(tags) > 0 && names(tags, etag, true) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// checkPatch is checkChange for a call with a body.
func (a *Admin) checkPatch(w http.ResponseWriter, r *http.Request) *refusal {
	if ref := a.authorize(r); ref != nil {
		return ref
	}
	values := r.Header["Content-Type"]
	if len(values) == 1 {
		if mediaType, _, err := mime.ParseMediaType(values[0]); err == nil && slices.Contains(patchTypes, mediaType) {
			return nil
		}
	}
	w.Header().Set("Accept-Patch", strings.Join(patchTypes, ", ")) // RFC 5789 §2.2
	return &refusal{http.StatusUnsupportedMediaType, "json_required", "send Content-Type: " + strings.Join(patchTypes, " or ")}
}

func (a *Admin) patchConfig(w http.ResponseWriter, r *http.Request) {
	p, ref := a.readPatch(w, r)
	switch {
	case a.cfg.Patch == nil:
		ref = notTunable
	case ref == nil:
		var answer any
		var etag string
		if answer, etag, ref = a.patch(p); ref == nil {
			w.Header().Set("ETag", etag)
			writeJSON(w, http.StatusOK, answer)
			return
		}
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
	}
	ref.write(w)
}

func (a *Admin) patch(p ConfigPatch) (answer any, etag string, ref *refusal) {
	answer, etag, err := a.cfg.Patch(p)
	switch {
	case errors.Is(err, ErrStale):
		ref = &refusal{http.StatusPreconditionFailed, "precondition_failed", err.Error()}
	case errors.Is(err, ErrMalformed):
		ref = &refusal{http.StatusBadRequest, "bad_patch", err.Error()}
	case err != nil:
		ref = &refusal{http.StatusUnprocessableEntity, "patch_failed", err.Error()}
	}
	return answer, etag, ref
}

// readPatch reads the whole call.
func (a *Admin) readPatch(w http.ResponseWriter, r *http.Request) (p ConfigPatch, ref *refusal) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails where there is no connection to be held
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPatch))
	_ = rc.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return p, &refusal{http.StatusRequestTimeout, "body_timeout", "the body of the request did not arrive in " + bodyTimeout.String()}
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return p, &refusal{http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("a patch has at most %d KiB", maxPatch>>10)}
	}
	if err != nil {
		return p, &refusal{http.StatusBadRequest, "bad_patch", "the body of the request broke off"}
	}
	p = ConfigPatch{Body: body, Match: func(string) bool { return true }}
	if tags, present := r.Header["If-Match"]; present {
		p.Match = func(etag string) bool { return names(tags, etag, false) }
	}
	flags := map[string]*bool{"dry_run": &p.DryRun, "save": &p.Save, "replace": &p.Replace}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		query = url.Values{"": nil}
	}
	for name, values := range query {
		flag := flags[name]
		if flag == nil || len(values) != 1 || values[0] != "true" && values[0] != "false" {
			return p, &refusal{http.StatusBadRequest, "bad_query", "a patch takes ?dry_run=true, ?save=true and ?replace=true; the changes are its body"}
		}
		*flag = values[0] == "true"
	}
	return p, nil
}

// names says whether one of the entity tags in a list is etag, or any (RFC 9110 §13.1.1). A
// weak one only counts where weak is said.
func names(lists []string, etag string, weak bool) bool {
	for _, list := range lists {
		for tag := range strings.SplitSeq(list, ",") {
			tag = strings.TrimSpace(tag)
			if weak {
				tag = strings.TrimPrefix(tag, "W/")
			}
			if tag == "*" || tag == etag {
				return true
			}
		}
	}
	return false
}
