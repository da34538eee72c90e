// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// An Env looks a variable up, as os.LookupEnv does.
type Env func(name string) (value string, set bool)

func (e Env) get(name string) string {
	value, _ := e(name)
	return value
}

// A Variable is one that is to be set; one without a value is to be unset.
type Variable struct{ Name, Value string }

// A Way leads programs to one Warmwire.
type Way struct {
	Base  string // as in http://127.0.0.1:8484
	Token string // listen.token; "" = none

	// Upstreams are those whose clients are told of them by base URLs.
	Upstreams []string

	// Authorities sign for intercepted hosts; nil: none is intercepted.
	Authorities []*x509.Certificate
	// Roots returns the PEM of what this system trusts.
	Roots func() ([]byte, error)

	// Dir is for the files. It must be there, and outlive the programs.
	Dir string
}

// loopback is what every client accepts: names and IPv4 literals. httpx crashes on a
// bare IPv6 address or a CIDR, so neither is in it.
var loopback = []string{"localhost", "127.0.0.1"}

// Variables returns what programs of env need to take this way, in the order of
// their names, and writes the files.
func (w Way) Variables(env Env) ([]Variable, error) {
	base, err := url.Parse(w.Base)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("clientenv: %q is no base URL", w.Base)
	}
	proxy := *base
	if w.Token != "" {
		proxy.User = url.UserPassword("warmwire", w.Token)
	}
	without := joinNoProxy(env)
	set := map[string]string{
		"HTTP_PROXY": proxy.String(), "http_proxy": proxy.String(), "HTTPS_PROXY": proxy.String(), "https_proxy": proxy.String(),
		"wss_proxy": proxy.String(), // aiohttp's for WebSockets
		"NO_PROXY":  without, "no_proxy": without, "WARMWIRE_URL": w.Base,
		"NODE_USE_ENV_PROXY": "1", // heeded by Node 24, and by 22.21 and later
	}
	for _, name := range []string{"ALL_PROXY", "all_proxy"} {
		if _, has := env(name); has {
			set[name] = "" // it would compete with ours
		}
	}
	if set["NODE_OPTIONS"], err = w.nodeOptions(env); err != nil {
		return nil, err
	}
	w.baseURLs(env, set)
	store := ""
	if len(w.Authorities) > 0 {
		if store, err = w.trust(env, set); err != nil {
			return nil, err
		}
	}
	set["JAVA_TOOL_OPTIONS"] = javaOptions(env.get("JAVA_TOOL_OPTIONS"), base, without, store)
	var list []Variable
	for name, value := range set {
		list = append(list, Variable{name, value})
	}
	slices.SortFunc(list, func(a, b Variable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// joinNoProxy keeps what is excluded already.
func joinNoProxy(env Env) string {
	list := slices.Clone(loopback)
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		for _, entry := range strings.FieldsFunc(env.get(name), func(r rune) bool { return r == ',' || r == ' ' }) {
			if !slices.Contains(list, entry) {
				list = append(list, entry)
			}
		}
	}
	return strings.Join(list, ",")
}

// BaseURLs are those that the official SDKs read: upstream to variable to the path
// behind the upstream's name.
var BaseURLs = map[string]map[string]string{
	"openai":     {"OPENAI_BASE_URL": "/v1", "OPENAI_API_BASE": "/v1"},
	"anthropic":  {"ANTHROPIC_BASE_URL": ""},
	"gemini":     {"GOOGLE_GEMINI_BASE_URL": "", "GEMINI_BASE_URL": ""},
	"mistral":    {"MISTRAL_BASE_URL": ""},
	"groq":       {"GROQ_BASE_URL": ""},
	"deepseek":   {"DEEPSEEK_BASE_URL": "", "DEEPSEEK_API_BASE": ""},
	"openrouter": {"OPENROUTER_BASE_URL": "/v1"},
	"xai":        {"XAI_BASE_URL": "/v1"},
	"ollama":     {"OLLAMA_API_BASE": ""},
}

// baseURLs leaves one that leads to somebody else's gateway: its key is for that
// gateway, and would reach the provider.
func (w Way) baseURLs(env Env, set map[string]string) {
	for upstream, variables := range BaseURLs {
		for name, suffix := range variables {
			before := env.get(name)
			ours := ledToUs(before, "/"+upstream+suffix)
			switch {
			case slices.Contains(w.Upstreams, upstream) && (before == "" || ours):
				set[name] = w.Base + "/" + upstream + suffix
			case ours && !slices.Contains(w.Upstreams, upstream):
				set[name] = "" // of a call before, perhaps to a Warmwire that is gone
			}
		}
	}
}

// ledToUs says that a value is one that baseURLs makes, for whichever port.
func ledToUs(value, path string) bool {
	u, err := url.Parse(value)
	return err == nil && u.Scheme == "http" && u.Path == path && isLoopback(u.Hostname())
}

func isLoopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// nodeOptions adds the hook. --require, since --import ends a Node before 18.18.
func (w Way) nodeOptions(env Env) (string, error) {
	file := filepath.Join(w.Dir, hookName)
	if err := writeHook(file); err != nil {
		return "", err
	}
	option := "--require " + nodeQuote(file)
	before := env.get("NODE_OPTIONS")
	if strings.Contains(before, option) {
		return before, nil
	}
	return strings.TrimSpace(before + " " + option), nil
}

// nodeQuote quotes a word of NODE_OPTIONS.
func nodeQuote(word string) string {
	if !strings.ContainsAny(word, ` "\`) {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

// Apply returns environ, as of os.Environ, with list in it. Variables without a value
// are taken away.
func Apply(environ []string, list []Variable) []string {
	out := make([]string, 0, len(environ)+len(list))
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(list, func(v Variable) bool { return v.Name == name }) {
			out = append(out, kv)
		}
	}
	for _, v := range list {
		if v.Value != "" {
			out = append(out, v.Name+"="+v.Value)
		}
	}
	return out
}
