// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"embed"
	"mime"
	"net/http"
	"path"
	"strings"
)

// dashboard is the page at / for browsers and what it loads: plain files, and uPlot
// (MIT, its licence beside it) as published.
//
//go:embed dashboard
var dashboard embed.FS

// pagePolicy lets the page load its own files and ask its own listener, and nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// dashboardFiles are the paths of what the page loads.
func dashboardFiles() (paths []string) {
	files, err := dashboard.ReadDir("dashboard")
	if err != nil {
		panic("admin: internal error: " + err.Error()) // it is built in
	}
	for _, f := range files {
		if f.Name() != "index.html" {
			paths = append(paths, "/dashboard/"+f.Name())
		}
	}
	return paths
}

// index is the page for browsers, and for others a list of the paths.
func (a *Admin) index(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if strings.Contains(strings.Join(r.Header["Accept"], ","), "text/html") {
		w.Header().Set("Content-Security-Policy", pagePolicy)
		a.file(w, "dashboard/index.html")
		return
	}
	write(w, http.StatusOK, plainText, []byte(indexText))
}

func (a *Admin) asset(w http.ResponseWriter, r *http.Request) {
	a.file(w, strings.TrimPrefix(r.URL.Path, "/"))
}

func (a *Admin) file(w http.ResponseWriter, name string) {
	text, err := dashboard.ReadFile(name)
	if err != nil {
		(&refusal{http.StatusNotFound, "not_found", "there is nothing at this path; GET / lists what there is"}).write(w)
		return
	}
	kind := mime.TypeByExtension(path.Ext(name))
	if kind == "" {
		kind = plainText
	}
	write(w, http.StatusOK, kind, text)
}
