// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// proxies looks at where the proxy variables lead.
func (x *examination) proxies() {
	names := []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"}
	value := map[string]string{}
	for _, name := range names {
		if value[name] = x.env.get(name); value[name] != "" {
			x.proxy(name, value[name])
		}
	}
	secure, plain := value["HTTPS_PROXY"]+value["https_proxy"] != "", value["HTTP_PROXY"]+value["http_proxy"] != ""
	all := value["ALL_PROXY"] + value["all_proxy"]
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY"} {
		lower := strings.ToLower(name)
		if a, b := value[name], value[lower]; a != "" && b != "" && a != b {
			x.add(Error, "proxy_differs", "export "+lower+`="$`+name+`"`, "%s and %s differ: Go and Deno take the first, curl, Python and Node the second", name, lower)
		}
	}
	switch {
	case !secure && !plain && all == "":
		if !x.hasBaseURL() {
			x.add(Warning, "not_led", EnvCommand, "no variable of this shell leads to Warmwire: only programs that name it themselves arrive")
		}
	case !secure && all != "":
		x.add(Warning, "proxy_all_only", EnvCommand, "ALL_PROXY alone is heeded by curl, requests and httpx; Go, Node, Java and Deno ignore it: set HTTPS_PROXY too")
	case !secure:
		x.add(Warning, "proxy_https_unset", EnvCommand, "HTTP_PROXY holds for http:// targets only, and model APIs are https://: set HTTPS_PROXY too")
	case value["HTTPS_PROXY"] != "" && value["https_proxy"] == "":
		x.add(Note, "proxy_upper_only", `export https_proxy="$HTTPS_PROXY"`, "https_proxy is not set: wget heeds the lower case only")
	}
	if value["HTTP_PROXY"] != "" && value["http_proxy"] == "" {
		x.add(Warning, "proxy_http_upper", `export http_proxy="$HTTP_PROXY"`, "curl, wget and Ruby ignore HTTP_PROXY in upper case (a web server's clients could set it): set http_proxy too")
	}
}

// proxy looks at one variable.
func (x *examination) proxy(name, value string) {
	text := value
	if !strings.Contains(text, "://") {
		x.add(Warning, "proxy_scheme_missing", "export "+name+"="+sh("http://"+value), "%s has no scheme: httpx and Node end with an error", name)
		text = "http://" + value
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		x.add(Error, "proxy_invalid", EnvCommand, "%s is no proxy URL: want http://HOST:PORT", name)
		return
	}
	who := x.facts.Probe(hostPort(u))
	switch {
	case who == Warmwire && u.Scheme != "http":
		x.add(Error, "proxy_scheme", "export "+name+"="+sh("http://"+u.Host), "%s says %s, and Warmwire is spoken to over http:// (what goes through it is encrypted as ever)", name, u.Scheme)
	case who == Warmwire:
		x.led = true
	case who == Nobody:
		x.add(Error, "proxy_dead", EnvCommand, "%s leads to %s, where nothing listens: each call of this shell fails at once", name, hostPort(u))
	case who == Other && !strings.HasPrefix(strings.ToLower(name), "all_"):
		x.add(Warning, "proxy_other", EnvCommand, "%s leads to %s, which is no Warmwire: calls go past it (parent_proxy makes it the way out of Warmwire)", name, hostPort(u))
	}
}

// hostPort is without the user.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (x *examination) hasBaseURL() bool {
	for _, variables := range BaseURLs {
		for name := range variables {
			if u, err := url.Parse(x.env.get(name)); err == nil && isLoopback(u.Hostname()) {
				return true
			}
		}
	}
	return false
}

// baseURLs looks at what the SDKs read.
func (x *examination) baseURLs() {
	var variables []string
	upstreamOf := map[string]string{}
	for upstream, list := range BaseURLs {
		for name := range list {
			variables, upstreamOf[name] = append(variables, name), upstream
		}
	}
	slices.Sort(variables)
	for _, name := range variables {
		value := x.env.get(name)
		u, err := url.Parse(value)
		if value == "" || err != nil || !isLoopback(u.Hostname()) {
			continue // a gateway of somebody's, or none
		}
		who := x.facts.Probe(hostPort(u))
		upstream := upstreamOf[name]
		want := "/" + upstream + BaseURLs[upstream][name]
		segment, _, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
		mend := "export " + name + "=" + sh("http://"+u.Host+want)
		switch {
		case who == Nobody && ledToUs(value, want):
			x.add(Error, "base_url_dead", EnvCommand, "%s leads to %s, where nothing listens", name, hostPort(u))
		case who != Warmwire:
			continue // a model server of the user's
		case u.Scheme != "http":
			x.add(Error, "base_url_scheme", mend, "%s says %s, and Warmwire is spoken to over http://", name, u.Scheme)
		case !slices.Contains(x.facts.Upstreams, segment):
			x.add(Error, "base_url_upstream", mend, "%s names no upstream: its path begins with /%s", name, segment)
		case segment == upstream && strings.TrimSuffix(u.Path, "/") != want:
			x.add(Warning, "base_url_path", mend, "the path of %s is %s, where its SDK expects %s", name, u.Path, want)
		}
	}
}

// noProxy looks at what is excluded.
func (x *examination) noProxy() {
	upper, lower := x.env.get("NO_PROXY"), x.env.get("no_proxy")
	if upper != "" && lower != "" && upper != lower {
		x.add(Warning, "no_proxy_differs", `export no_proxy="$NO_PROXY"`, "NO_PROXY and no_proxy differ, and clients do not agree on which one counts")
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		value := x.env.get(name)
		if value == "" || name == "no_proxy" && lower == upper {
			continue
		}
		var kept, odd []string
		covered := map[string]bool{}
		for _, entry := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
			hit := false
			for _, host := range x.facts.Hosts {
				if excludes(entry, host) {
					hit, covered[host] = true, true
				}
			}
			if !hit {
				kept = append(kept, entry)
			}
			if strings.Contains(entry, "/") || strings.Count(entry, ":") > 1 {
				odd = append(odd, entry)
			}
		}
		if len(covered) > 0 && x.led {
			mend := strings.Join(kept, ",")
			x.add(Error, "no_proxy_covers", "export NO_PROXY="+sh(mend)+" no_proxy="+sh(mend), "%s excludes %s: calls to it go past Warmwire", name, strings.Join(sorted(covered), ", "))
		}
		if len(odd) > 0 {
			x.add(Warning, "no_proxy_form", "", "%s has %s: httpx ends with an error on an IPv6 address or a prefix there, and curl before 7.86 and Node do not know prefixes", name, strings.Join(odd, ", "))
		}
	}
}

func sorted(set map[string]bool) (list []string) {
	for name := range set {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// excludes says whether an entry of NO_PROXY covers a host, as most clients read it.
func excludes(entry, host string) bool {
	name := strings.ToLower(entry)
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	if name == "*" {
		return true
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "*"), ".")
	return name != "" && (host == name || strings.HasSuffix(host, "."+name))
}

// node looks at the hook and at who heeds NODE_USE_ENV_PROXY.
func (x *examination) node() {
	options := x.env.get("NODE_OPTIONS")
	if file, named := hookIn(options); named {
		if _, err := os.Stat(file); err != nil {
			x.add(Error, "node_hook_missing", EnvCommand, "NODE_OPTIONS requires %s, which is not there: no Node program starts", file)
		}
		return
	}
	switch {
	case !x.led:
	case x.env.get("NODE_USE_ENV_PROXY") != "1":
		x.add(Warning, "node_ignores_proxy", EnvCommand, "NODE_USE_ENV_PROXY is not 1: Node's fetch and https ignore the proxy variables")
	case x.facts.Node != "" && !heedsEnvProxy(x.facts.Node):
		x.add(Warning, "node_too_old", EnvCommand, "node %s ignores NODE_USE_ENV_PROXY (24 and 22.21 heed it): it needs our hook in NODE_OPTIONS", x.facts.Node)
	}
}

// hookIn finds the file of our hook in NODE_OPTIONS.
func hookIn(options string) (file string, named bool) {
	before, _, found := strings.Cut(options, hookName)
	if !found {
		return "", false
	}
	start := strings.LastIndex(before, "--require ")
	if start < 0 {
		return "", false
	}
	file = before[start+len("--require "):] + hookName
	if strings.HasPrefix(file, `"`) {
		file = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(file[1:])
	}
	return file, true
}

// heedsEnvProxy is so of 24 and later, and of 22.21 and later.
func heedsEnvProxy(version string) bool {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	major, err := strconv.Atoi(parts[0])
	if err != nil || len(parts) < 2 {
		return true // nothing is known against it
	}
	minor, _ := strconv.Atoi(parts[1])
	return major >= 24 || major == 22 && minor >= 21
}

func (x *examination) java() {
	if x.led && x.facts.Java && !strings.Contains(x.env.get("JAVA_TOOL_OPTIONS"), "-Dhttps.proxyHost=") {
		x.add(Warning, "java_ignores_proxy", EnvCommand, "Java ignores the proxy variables: JAVA_TOOL_OPTIONS has no -Dhttps.proxyHost")
	}
}
