// SPDX-License-Identifier: Apache-2.0

package clientenv_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// facts: a Warmwire at 127.0.0.1:8484, a company's proxy, and nobody elsewhere.
func facts() clientenv.Facts {
	return clientenv.Facts{Base: "http://127.0.0.1:8484", Upstreams: []string{"openai", "groq"}, Hosts: []string{"api.openai.com", "api.groq.com"},
		Probe: func(address string) clientenv.Presence {
			switch address {
			case "127.0.0.1:8484":
				return clientenv.Warmwire
			case "proxy.corp:3128", "127.0.0.1:3000":
				return clientenv.Other
			}
			return clientenv.Nobody
		}}
}

// TestPlantedFaultsAreFound plants one fault each into an environment that is as it
// should be.
func TestPlantedFaultsAreFound(t *testing.T) {
	const ours = "http://127.0.0.1:8484"
	tests := []struct {
		name  string
		plant []string // name, value; a value "-" unsets
		codes string   // level:code
		text  string
		mend  string
	}{
		{name: "none"},
		{name: "nothing is set", plant: []string{"HTTPS_PROXY", "-", "https_proxy", "-", "HTTP_PROXY", "-", "http_proxy", "-"}, codes: "warning:not_led", mend: clientenv.EnvCommand},
		{name: "only a base URL", plant: []string{"HTTPS_PROXY", "-", "https_proxy", "-", "HTTP_PROXY", "-", "http_proxy", "-", "OPENAI_BASE_URL", ours + "/openai/v1"}},
		{name: "nobody there", plant: []string{"https_proxy", "http://u:secret@127.0.0.1:9", "HTTPS_PROXY", "-"}, codes: "error:proxy_dead", text: "127.0.0.1:9"},
		{name: "another proxy", plant: []string{"https_proxy", "http://proxy.corp:3128", "HTTPS_PROXY", "http://proxy.corp:3128"}, codes: "warning:proxy_other,warning:proxy_other"},
		{name: "spellings differ", plant: []string{"https_proxy", "http://proxy.corp:3128"}, codes: "warning:proxy_other,error:proxy_differs", mend: `export https_proxy="$HTTPS_PROXY"`},
		{name: "upper case HTTP only", plant: []string{"http_proxy", "-"}, codes: "warning:proxy_http_upper", text: "curl"},
		{name: "http only", plant: []string{"HTTPS_PROXY", "-", "https_proxy", "-"}, codes: "warning:proxy_https_unset"},
		{name: "ALL_PROXY only", plant: []string{"HTTPS_PROXY", "-", "https_proxy", "-", "HTTP_PROXY", "-", "http_proxy", "-", "ALL_PROXY", ours}, codes: "warning:proxy_all_only", text: "Go, Node"},
		{name: "wget", plant: []string{"https_proxy", "-"}, codes: "note:proxy_upper_only", text: "wget"},
		{name: "TLS to us", plant: []string{"HTTPS_PROXY", "https://127.0.0.1:8484", "https_proxy", "https://127.0.0.1:8484"}, codes: "error:proxy_scheme,error:proxy_scheme", mend: "export HTTPS_PROXY='http://127.0.0.1:8484'"},
		{name: "no scheme", plant: []string{"HTTPS_PROXY", "127.0.0.1:8484", "https_proxy", "-"}, codes: "warning:proxy_scheme_missing,note:proxy_upper_only"},
		{name: "no URL", plant: []string{"HTTPS_PROXY", "http://[", "https_proxy", "http://["}, codes: "error:proxy_invalid,error:proxy_invalid"},
		{name: "NO_PROXY by suffix", plant: []string{"NO_PROXY", "localhost,.openai.com"}, codes: "error:no_proxy_covers", text: "api.openai.com", mend: "export NO_PROXY='localhost' no_proxy='localhost'"},
		{name: "no_proxy *", plant: []string{"no_proxy", "*"}, codes: "error:no_proxy_covers", text: "api.groq.com, api.openai.com"},
		{name: "NO_PROXY of others", plant: []string{"NO_PROXY", "openai.com.evil.test,groq.co,ai.com"}},
		{name: "NO_PROXY forms", plant: []string{"NO_PROXY", "::1,10.0.0.0/8"}, codes: "warning:no_proxy_form", text: "httpx"},
		{name: "NO_PROXY differs", plant: []string{"NO_PROXY", "a", "no_proxy", "b"}, codes: "warning:no_proxy_differs"},
		{name: "Node unasked", plant: []string{"NODE_USE_ENV_PROXY", "-", "NODE_OPTIONS", "-"}, codes: "warning:node_ignores_proxy"},
		{name: "Node too old", plant: []string{"NODE_OPTIONS", "-"}, codes: "warning:node_too_old", text: "v20.20.2"},
		{name: "hook gone", plant: []string{"NODE_OPTIONS", `--no-warnings --require "/nowhere at all/node-proxy.cjs"`}, codes: "error:node_hook_missing", text: "/nowhere at all/node-proxy.cjs"},
		{name: "Java", plant: []string{"JAVA_TOOL_OPTIONS", "-Xmx1g"}, codes: "warning:java_ignores_proxy"},
		{name: "base URL to nobody", plant: []string{"OPENAI_BASE_URL", "http://127.0.0.1:9/openai/v1"}, codes: "error:base_url_dead"},
		{name: "base URL without /v1", plant: []string{"OPENAI_BASE_URL", ours + "/openai"}, codes: "warning:base_url_path", mend: "export OPENAI_BASE_URL='http://127.0.0.1:8484/openai/v1'"},
		{name: "base URL of no upstream", plant: []string{"OPENAI_BASE_URL", ours + "/v1"}, codes: "error:base_url_upstream"},
		{name: "base URL over TLS", plant: []string{"OPENAI_BASE_URL", "https://127.0.0.1:8484/openai/v1"}, codes: "error:base_url_scheme"},
		{name: "base URL of a local model", plant: []string{"OPENAI_BASE_URL", "http://127.0.0.1:3000/v1"}},
		{name: "CA file gone", plant: []string{"SSL_CERT_FILE", "/nowhere.pem"}, codes: "error:ca_file_unreadable", text: "/nowhere.pem"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, vars := healthy(t, clientenv.Way{Base: ours})
			for i := 0; i < len(tt.plant); i += 2 {
				if vars[tt.plant[i]] = tt.plant[i+1]; tt.plant[i+1] == "-" {
					delete(vars, tt.plant[i])
				}
			}
			f := facts()
			f.Node, f.Java = "v20.20.2", true
			found := clientenv.Examine(e, f)
			if got := codes(found); got != tt.codes {
				t.Fatalf("%q, want %q: %+v", got, tt.codes, found)
			}
			if len(found) > 0 {
				last := found[len(found)-1]
				if !strings.Contains(last.Text, tt.text) || tt.mend != "" && last.Mend != tt.mend && found[0].Mend != tt.mend || strings.Contains(last.Text+last.Mend, "secret") {
					t.Errorf("%+v", found)
				}
			}
		})
	}
}

func codes(found []clientenv.Finding) string {
	var list []string
	for _, f := range found {
		list = append(list, string(f.Level)+":"+f.Code)
	}
	return strings.Join(list, ",")
}

// healthy is what Way makes of an empty environment, less NO_PROXY.
func healthy(t *testing.T, w clientenv.Way) (clientenv.Env, map[string]string) {
	t.Helper()
	e, vars := env()
	w.Dir = t.TempDir()
	for name, value := range made(t, w, e) {
		vars[name] = value
	}
	delete(vars, "NO_PROXY")
	delete(vars, "no_proxy")
	return e, vars
}

func TestPlantedFaultsOfTheListener(t *testing.T) {
	e, _ := healthy(t, clientenv.Way{Base: "http://127.0.0.1:8484"})
	f := facts()
	for base, want := range map[string]string{"http://127.0.0.1:9": "warning:not_running", "http://proxy.corp:3128": "error:port_taken", "": "warning:no_tcp_listener"} {
		if f.Base = base; codes(clientenv.Examine(e, f)) != want {
			t.Errorf("%q: %+v, want %s", base, clientenv.Examine(e, f), want)
		}
	}
}

func TestPlantedFaultsOfTrust(t *testing.T) {
	roots := root(t, "system")
	w := clientenv.Way{Base: "http://127.0.0.1:8484", Authorities: []*x509.Certificate{authority(t)}, Roots: func() ([]byte, error) { return roots, nil }}
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lacking, alone := write("lacking.pem", roots), write("alone.pem", ca.PEM(w.Authorities...))
	another := write("another.pem", slices.Concat(roots, ca.PEM(authority(t))))
	tests := []struct {
		name        string
		plant       []string
		system, any bool
		codes, text string
	}{
		{name: "none"},
		{name: "replaces the store and lacks ours", plant: []string{"SSL_CERT_FILE", lacking, "REQUESTS_CA_BUNDLE", lacking}, codes: "error:ca_not_in_file", text: "SSL_CERT_FILE (OpenSSL"},
		{name: "an authority that was retired", plant: []string{"NODE_EXTRA_CA_CERTS", another}, codes: "error:ca_not_in_file", text: "Node.js"},
		{name: "one of a run of its own", plant: []string{"NODE_EXTRA_CA_CERTS", another}, any: true},
		{name: "ours alone", plant: []string{"CURL_CA_BUNDLE", alone}, codes: "error:ca_file_lacks_roots", text: "curl"},
		{name: "ours alone, added", plant: []string{"NODE_EXTRA_CA_CERTS", alone}},
		{name: "a folder", plant: []string{"REQUESTS_CA_BUNDLE", dir}},
		{name: "Node untold", plant: []string{"NODE_EXTRA_CA_CERTS", "-"}, system: true, codes: "warning:ca_unset", text: "Node.js"},
		{name: "OpenSSL untold, but the system trusts us", plant: []string{"SSL_CERT_FILE", "-"}, system: true},
		{name: "OpenSSL untold", plant: []string{"SSL_CERT_FILE", "-"}, codes: "warning:ca_unset", text: "SSL_CERT_FILE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, vars := healthy(t, w)
			for i := 0; i < len(tt.plant); i += 2 {
				if vars[tt.plant[i]] = tt.plant[i+1]; tt.plant[i+1] == "-" {
					delete(vars, tt.plant[i])
				}
			}
			f := facts()
			f.Intercepting, f.Authorities, f.SystemTrusts = true, w.Authorities, tt.system
			if tt.any {
				f.Authorities = nil
			}
			found := clientenv.Examine(e, f)
			if codes(found) != tt.codes || len(found) > 0 && !strings.Contains(found[0].Text, tt.text) {
				t.Errorf("%+v, want %q", found, tt.codes)
			}
		})
	}
}
