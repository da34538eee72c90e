// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// maxFileBytes is far above any sensible configuration.
const maxFileBytes = 1 << 20

// Env looks an environment variable up, like os.LookupEnv.
type Env = func(string) (string, bool)

// FileVariable is the environment's variable that names the configuration.
const FileVariable = "WARMWIRE_CONFIG"

// Find returns the path of the configuration that applies: the flag, then
// WARMWIRE_CONFIG, then the user's, then the system's. The first two are returned
// whether they exist or not: asking for a file that is not there is an error.
func Find(flag string, getenv Env, exists func(string) bool) (string, bool) {
	if flag != "" {
		return flag, true
	}
	if path, ok := getenv(FileVariable); ok && path != "" {
		return path, true
	}
	var paths []string
	if dir, ok := getenv("XDG_CONFIG_HOME"); ok && filepath.IsAbs(dir) {
		paths = append(paths, filepath.Join(dir, "warmwire", "warmwire.yaml"))
	} else if home, ok := getenv("HOME"); ok && home != "" {
		paths = append(paths, filepath.Join(home, ".config", "warmwire", "warmwire.yaml"))
	}
	for _, path := range append(paths, "/etc/warmwire/warmwire.yaml") {
		if exists(path) {
			return path, true
		}
	}
	return "", false
}

// Load reads the file at path, or the built-in default if path is empty. Warnings
// name settings that work but hardly do what is wanted.
func Load(path string, getenv Env) (*Config, []string, error) {
	return LoadOver(path, getenv, Over{})
}

// LoadOver is Load with what stands over the file.
func LoadOver(path string, getenv Env, over Over) (*Config, []string, error) {
	if path == "" {
		return parse("default", nil, getenv, over)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if info.IsDir() || info.Size() > maxFileBytes {
		return nil, nil, fmt.Errorf("%w: %s is no file of at most 1 MiB", ErrInvalid, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1)) // a device has no size
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return parse(path, data, getenv, over)
}

// LoadAgain is LoadOver for a process that serves: what is no regular file, such as a pipe,
// is refused. It has given what it had, and reading it would wait for a writer.
func LoadAgain(path string, getenv Env, over Over) (*Config, []string, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%w: %s is no regular file: it is read at the start only", ErrInvalid, path)
	}
	return LoadOver(path, getenv, over)
}

// A problem is one thing that is wrong, and where.
type problem struct {
	line int // 0: nowhere in particular
	key  string
	text string
}

// A parser walks one file.
type parser struct {
	name     string
	getenv   Env
	problems []problem
	said     map[problem]bool    // what stands under defaults concerns every upstream, but is said once
	values   map[string]value    // by full dotted path
	named    []string            // upstreams in the file
	names    map[string][]string // tenants and roles in the file
}

// A value is what a file says for one key.
type value struct {
	line int
	text string            // scalars, after ${}
	list []string          // lists
	dict map[string]string // maps

	rules     []ClassRule
	endpoints []Endpoint
}

// Parse reads data; name stands for it in messages.
func Parse(name string, data []byte, getenv Env) (*Config, []string, error) {
	return parse(name, data, getenv, Over{})
}

func parse(name string, data []byte, getenv Env, over Over) (*Config, []string, error) {
	p := &parser{name: name, getenv: getenv, said: make(map[problem]bool), values: make(map[string]value), names: make(map[string][]string)}
	p.read(data, over.Patch)
	p.tune(over.Tuned)
	if len(p.problems) > 0 {
		return nil, nil, p.failure()
	}
	cfg, lines := p.resolve()
	var warnings []string
	if len(p.problems) == 0 {
		warnings = p.check(cfg, lines)
	}
	if len(p.problems) > 0 {
		return nil, nil, p.failure()
	}
	return cfg, warnings, nil
}

func (p *parser) addf(line int, key, format string, args ...any) {
	pr := problem{line, key, fmt.Sprintf(format, args...)}
	if !p.said[pr] {
		p.said[pr] = true
		p.problems = append(p.problems, pr)
	}
}

// maxProblems and maxShown keep the report of a file that is something else
// altogether readable.
const (
	maxProblems = 100
	maxShown    = 200 // bytes of a key, and of a text
)

// failure joins all problems, in the order of their lines.
func (p *parser) failure() error {
	slices.SortStableFunc(p.problems, func(a, b problem) int { return a.line - b.line })
	lines := make([]string, 0, min(len(p.problems), maxProblems+1))
	for i, pr := range p.problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("and %d more", len(p.problems)-i))
			break
		}
		lines = append(lines, p.place(pr.line, pr.key)+clip(pr.text))
	}
	return fmt.Errorf("%w:\n  %s", ErrInvalid, strings.Join(lines, "\n  "))
}

func (p *parser) place(line int, key string) string {
	s := p.name + ": "
	if line > 0 {
		s = fmt.Sprintf("%s:%d: ", p.name, line)
	}
	if key != "" {
		s += clip(key) + ": "
	}
	return s
}

// clip shortens s to whole characters.
func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "…"
}

// read fills values from the YAML document, patched.
func (p *parser) read(data []byte, patch Patch) {
	switch {
	case len(data) > maxFileBytes:
		p.addf(0, "", "the file is larger than 1 MiB")
		return
	case !utf8.Valid(data):
		p.addf(0, "", "the file is not UTF-8 text")
		return
	}
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) { // an empty file is the default
			p.addf(0, "", "not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
			return
		}
		doc = yaml.Node{Content: []*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!null"}}}
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		p.addf(second.Line, "", "a second document: one file holds one configuration")
		return
	}
	if len(doc.Content) != 1 {
		return
	}
	root := doc.Content[0]
	if root.Anchor != "" {
		p.addf(root.Line, "", "anchors and aliases are not used here")
		return
	}
	if !patch.Empty() && (isNull(root) || root.Kind == yaml.MappingNode) {
		p.applyPatch(root, patch)
	}
	if isNull(root) {
		return
	}
	p.walk(root, "", "", topKeys)
}

// walk reads a mapping. full is its dotted path in the file, section the part of
// it that keys knows.
func (p *parser) walk(n *yaml.Node, full, section string, keys []key) {
	if n.Kind != yaml.MappingNode {
		if !isNull(n) { // "defaults:" with nothing below it
			p.addf(n.Line, full, "this is a section: indent its keys below it")
		}
		return
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" || k.Anchor != "" {
			p.addf(k.Line, full, "keys are plain names; anchors and merges are not used here")
			continue
		}
		path := join(full, k.Value)
		if first, twice := seen[k.Value]; twice {
			p.addf(k.Line, path, "stands twice: first in line %d", first)
			continue
		}
		seen[k.Value] = k.Line
		if v.Kind == yaml.AliasNode || v.Anchor != "" {
			p.addf(v.Line, path, "anchors and aliases are not used here: write the value out, or put it under defaults")
			continue
		}
		p.entry(k, v, path, section, keys)
	}
}

func (p *parser) entry(k, v *yaml.Node, path, section string, keys []key) {
	if path == "upstreams" {
		p.walkUpstreams(v)
		return
	}
	if _, ok := nameSections[path]; ok {
		p.walkNamed(v, path)
		return
	}
	if path == "defaults" {
		p.walk(v, "defaults", "", upstreamKeys)
		return
	}
	rel := join(section, k.Value)
	known, isSection := find(keys, rel)
	switch {
	case known != nil && strings.HasPrefix(path, "defaults.") && slices.Contains(ownOnly, rel):
		p.addf(k.Line, path, "belongs to one upstream: it cannot have a default")
	case known != nil:
		p.scalar(v, path, known)
	case isSection:
		p.walk(v, path, rel, keys)
	default:
		p.unknown(k, path, section, keys)
	}
}

func (p *parser) unknown(k *yaml.Node, path, section string, keys []key) {
	guess := nearest(keys, section, k.Value)
	if section == "" && guess == "" && len(keys) == len(topKeys) {
		for _, name := range []string{"upstreams", "defaults", "tenants", "roles"} {
			if distance(k.Value, name) < 3 {
				guess = name
			}
		}
	}
	if guess != "" {
		p.addf(k.Line, path, "unknown key: did you mean %s?", guess)
		return
	}
	p.addf(k.Line, path, "unknown key: `warmwire config default` lists all")
}

func (p *parser) walkUpstreams(n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		if !isNull(n) {
			p.addf(n.Line, "upstreams", "this is a section: one name a line, its settings below it")
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		path := join("upstreams", k.Value)
		_, twice := p.values[path]
		switch {
		case k.Kind != yaml.ScalarNode || k.Anchor != "":
			p.addf(k.Line, "upstreams", "keys are plain names; anchors and merges are not used here")
		case !validName(k.Value):
			p.addf(k.Line, path, "a name has lower-case letters, digits, - and _, and begins with a letter or digit: it is a path segment")
		case slices.Contains(reservedNames, k.Value):
			p.addf(k.Line, path, "is a name that metrics use for hosts that are no upstream: choose another")
		case twice:
			p.addf(k.Line, path, "stands twice: first in line %d", p.values[path].line)
		case v.Kind == yaml.AliasNode || v.Anchor != "":
			p.addf(v.Line, path, "anchors and aliases are not used here: put what is common under defaults")
		default:
			p.named = append(p.named, k.Value)
			p.values[path] = value{line: k.Line}
			p.walk(v, path, "", upstreamKeys)
		}
	}
}

// reservedNames are metric labels of their own.
var reservedNames = []string{"forward", "tunnel", "other"}

func validName(s string) bool {
	for i, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (i == 0 || c != '-' && c != '_') {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// scalar reads one key's value with its type.
func (p *parser) scalar(n *yaml.Node, path string, k *key) {
	v := value{line: n.Line}
	raw := value{} // as in the file: what a variable holds may be a secret, and is not said
	switch k.kind {
	case kRules:
		p.rules(n, path, k)
		return
	case kEndpoints:
		p.readEndpoints(n, path)
		return
	case kList, kInts:
		if n.Kind != yaml.SequenceNode {
			p.addf(n.Line, path, "needs a list: [a, b]")
			return
		}
		v.list = []string{}
		for _, item := range n.Content {
			if text, ok := p.text(item, path); ok {
				v.list, raw.list = append(v.list, text), append(raw.list, item.Value)
			}
		}
	case kMap, kShares, kWeights:
		if n.Kind != yaml.MappingNode {
			p.addf(n.Line, path, "needs names with values")
			return
		}
		v.dict, raw.dict = make(map[string]string), make(map[string]string)
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			if n.Content[i].Kind != yaml.ScalarNode || n.Content[i].Anchor != "" {
				p.addf(n.Content[i].Line, path, "names are plain; anchors and merges are not used here")
				continue
			}
			for other := range v.dict {
				if strings.EqualFold(other, name) {
					p.addf(n.Content[i].Line, join(path, name), "stands twice")
				}
			}
			if text, ok := p.text(n.Content[i+1], join(path, name)); ok {
				v.dict[name], raw.dict[name] = text, n.Content[i+1].Value
			}
		}
	default:
		text, ok := p.text(n, path)
		if !ok {
			return
		}
		v.text, raw.text = text, n.Value
	}
	if err := k.accepts(v); err != nil {
		if unexpanded := k.accepts(raw); unexpanded != nil {
			err = unexpanded
		}
		p.addf(n.Line, path, "%v", err)
		return
	}
	p.values[path] = v
}

// accepts checks a value against the key's type and options.
func (k *key) accepts(v value) error {
	var err error
	switch k.kind {
	case kBool:
		if v.text != "true" && v.text != "false" {
			err = fmt.Errorf("%q is neither true nor false", v.text)
		}
	case kInt:
		least := 1
		if k.zero {
			least = 0
		}
		if n, perr := strconv.Atoi(v.text); perr != nil || n < least {
			err = fmt.Errorf("%q is no whole number from %d", v.text, least)
		}
	case kNumber:
		if _, perr := strconv.ParseFloat(v.text, 64); perr != nil {
			err = fmt.Errorf("%q is no number", v.text)
		}
	case kDuration:
		_, err = parseDuration(v.text)
	case kSize:
		_, err = parseSize(v.text)
	case kBound:
		if v.text != "auto" {
			_, err = parseSize(v.text)
		}
	case kShares:
		return k.acceptsShares(v.dict)
	case kWeights:
		for _, name := range slices.Sorted(maps.Keys(v.dict)) {
			if _, ok := weight(v.dict[name]); !ok {
				return fmt.Errorf("%s: %q is no weight, above 0 to %v: to take an endpoint out use routing.drain", name, v.dict[name], maxWeight)
			}
		}
	case kInts:
		for _, s := range v.list {
			if _, perr := strconv.ParseUint(s, 10, 32); perr != nil {
				return fmt.Errorf("%q is no whole number from 0", s)
			}
		}
	}
	if err != nil || len(k.options) == 0 {
		return err
	}
	given := []string{v.text}
	if k.kind == kList {
		given = slices.Clone(v.list)
	}
	for _, s := range given {
		if !slices.Contains(k.options, s) { // an empty value too: it must not pass for a policy
			return fmt.Errorf("%q is not known here: use %s", s, strings.Join(k.options, ", "))
		}
	}
	if slices.Sort(given); len(slices.Compact(given)) < len(given) {
		return errors.New("names one twice")
	}
	if len(given) == 0 {
		return fmt.Errorf("needs at least one of %s", strings.Join(k.options, ", "))
	}
	return nil
}

// text is a scalar with its ${NAME}s replaced. What a variable holds stays text.
func (p *parser) text(n *yaml.Node, path string) (string, bool) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		p.addf(n.Line, path, "anchors and aliases are not used here: write the value out")
		return "", false
	case n.Kind != yaml.ScalarNode:
		p.addf(n.Line, path, "needs a single value")
		return "", false
	case n.Style&yaml.TaggedStyle != 0:
		p.addf(n.Line, path, "tags such as %s are not used here", n.Tag)
		return "", false
	}
	if isNull(n) {
		return "", true
	}
	var b strings.Builder
	for rest := n.Value; ; {
		i := strings.IndexByte(rest, '$')
		if i < 0 || i+1 == len(rest) {
			b.WriteString(rest)
			return b.String(), true
		}
		b.WriteString(rest[:i])
		switch end := strings.IndexByte(rest[i:], '}'); {
		case rest[i+1] == '$':
			b.WriteByte('$')
			rest = rest[i+2:]
		case rest[i+1] != '{':
			b.WriteByte('$')
			rest = rest[i+1:]
		case end < 0:
			p.addf(n.Line, path, "${ without }: write $$ for a dollar")
			return "", false
		default:
			name := rest[i+2 : i+end]
			v, ok := p.getenv(name)
			if !ok {
				p.addf(n.Line, path, "the environment variable %s is not set", name)
				return "", false
			}
			if v == "" && (path == "listen.token" || path == "jwt.secret" || strings.Contains(path, ".headers.set.") || strings.HasPrefix(path, "telemetry.otlp.headers.") || strings.HasPrefix(path, "tenants.")) {
				// It would leave the port open, or send every request without its key.
				p.addf(n.Line, path, "the environment variable %s is empty: set it, or remove this key", name)
				return "", false
			}
			b.WriteString(v)
			rest = rest[i+end+1:]
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
