// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// ErrPatch is matched by errors of what is no JSON Merge Patch at all.
var ErrPatch = errors.New("not a JSON Merge Patch")

// maxPatchDepth is twice what the deepest key needs.
const maxPatchDepth = 16

// A Patch is a JSON Merge Patch (RFC 7396) of the file: objects are merged, null takes a
// key away, everything else is put in whole. The zero value changes nothing. A Patch is
// never changed in place.
type Patch struct{ root patchNode }

// A patchNode is one value of a patch: an object if Fields is not nil. Its JSON is that of
// [Over.Marshal].
type patchNode struct {
	Fields map[string]patchNode `json:"fields,omitzero"`
	Anew   bool                 `json:"anew,omitzero"` // the object stands in place of what is there: it was null or no object before
	Remove bool                 `json:"remove,omitzero"`
	Value  any                  `json:"value,omitzero"` // text, number, bool or list
}

// ParsePatch reads a patch. What it says of an error holds nothing of the values.
func ParsePatch(text []byte) (Patch, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text)) // refuses duplicate names and what is no UTF-8
	n, err := readPatch(dec)
	if err == nil {
		if _, err = dec.ReadToken(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("there is more behind it")
		}
	}
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		err = fmt.Errorf("at byte %d: %w", s.ByteOffset, why(s.Err))
	} else if errors.Is(err, io.EOF) {
		err = why(err)
	}
	if err == nil && n.Fields == nil {
		err = errors.New("it must be an object: {\"KEY\": VALUE}")
	}
	if err != nil {
		return Patch{}, fmt.Errorf("%w: %w", ErrPatch, err)
	}
	return Patch{n}, nil
}

// why says what is wrong without what was read, which may be a secret.
func why(err error) error {
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return errors.New("a name stands twice in an object")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("it ends too early")
	}
	return errors.New("no JSON")
}

func readPatch(dec *jsontext.Decoder) (patchNode, error) {
	if dec.StackDepth() > maxPatchDepth {
		return patchNode{}, fmt.Errorf("it is deeper than %d", maxPatchDepth)
	}
	tok, err := dec.ReadToken()
	if err != nil {
		return patchNode{}, err
	}
	switch tok.Kind() {
	case jsontext.KindNull:
		return patchNode{Remove: true}, nil
	case jsontext.KindTrue, jsontext.KindFalse:
		return patchNode{Value: tok.Bool()}, nil
	case jsontext.KindNumber:
		return patchNode{Value: json.Number(tok.String())}, nil
	case jsontext.KindString:
		return patchNode{Value: tok.String()}, nil
	case jsontext.KindBeginArray:
		return readList(dec)
	}
	n := patchNode{Fields: map[string]patchNode{}}
	for dec.PeekKind() != jsontext.KindEndObject {
		name, err := dec.ReadToken()
		if err != nil {
			return n, err
		}
		key := name.String() // before the next token takes its place
		if n.Fields[key], err = readPatch(dec); err != nil {
			return n, err
		}
	}
	_, err = dec.ReadToken()
	return n, err
}

// readList reads a list, which is taken whole, with what is null in it (RFC 7396 §2).
func readList(dec *jsontext.Decoder) (patchNode, error) {
	list := []any{}
	for dec.PeekKind() != jsontext.KindEndArray {
		item, err := readPatch(dec)
		if err != nil {
			return patchNode{}, err
		}
		list = append(list, item.plain())
	}
	_, err := dec.ReadToken()
	return patchNode{Value: list}, err
}

// plain is the value that a node of a list is.
func (n patchNode) plain() any {
	if n.Fields == nil {
		return n.Value
	}
	m := make(map[string]any, len(n.Fields))
	for name, f := range n.Fields {
		m[name] = f.plain()
	}
	return m
}

// Empty says whether p changes nothing, whatever the file.
func (p Patch) Empty() bool { return len(p.root.Fields) == 0 }

// With is p and then q.
func (p Patch) With(q Patch) Patch {
	if p.Empty() {
		return q
	}
	return Patch{p.root.with(q.root)}
}

func (n patchNode) with(q patchNode) patchNode {
	if q.Fields == nil {
		return q
	}
	if n.Fields == nil && (n.Remove || n.Value != nil) {
		n.Anew = true // q is an object where n had none
	}
	out := patchNode{Fields: maps.Clone(n.Fields), Anew: n.Anew || q.Anew}
	if out.Fields == nil || q.Anew {
		out.Fields = map[string]patchNode{}
	}
	for name, f := range q.Fields {
		old, there := out.Fields[name]
		switch {
		case there:
			out.Fields[name] = old.with(f)
		case out.Anew && f.Remove: // nothing is there to take away
		default:
			out.Fields[name] = f
		}
	}
	return out
}

// without leaves out what is as in shown already, and says whether anything is left.
func (n patchNode) without(shown any) (patchNode, bool) {
	if n.Fields == nil {
		return n, n.Remove || !sameJSON(n.Value, shown)
	}
	tree, isTree := shown.(map[string]any)
	if !isTree && len(n.Fields) == 0 {
		return n, true
	}
	out := patchNode{Fields: map[string]patchNode{}, Anew: n.Anew}
	for name, f := range n.Fields {
		if left, any := f.without(tree[name]); any {
			out.Fields[name] = left
		}
	}
	return out, len(out.Fields) > 0
}

// Unlike is what p says otherwise than c: a secret that comes back as it is shown is no
// change.
func (p Patch) Unlike(c *Config) Patch {
	n, left := p.root.without(c.tree(masked))
	if !left {
		return Patch{}
	}
	return Patch{n}
}

func sameJSON(a, b any) bool {
	text, err := json.Marshal(a)
	if err != nil {
		return false
	}
	var plain any
	return json.Unmarshal(text, &plain) == nil && reflect.DeepEqual(plain, b)
}

// Paths are the keys that p sets or takes away, dotted and sorted.
func (p Patch) Paths() []string {
	var out []string
	p.root.walk(nil, func(parts []string, _ patchNode) { out = append(out, strings.Join(parts, ".")) })
	return out
}

// walk visits all that is no object, and empty objects, in the order of their names.
func (n patchNode) walk(parts []string, visit func(parts []string, n patchNode)) {
	if len(n.Fields) == 0 {
		if len(parts) > 0 {
			visit(parts, n)
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(n.Fields)) {
		n.Fields[name].walk(append(slices.Clip(parts), name), visit)
	}
}

// Drop is p less what is said at paths, below them or for all of what holds them.
func (p Patch) Drop(paths []string) Patch {
	n, left := p.root.drop("", paths)
	if !left {
		return Patch{}
	}
	return Patch{n}
}

func (n patchNode) drop(at string, paths []string) (patchNode, bool) {
	for _, p := range paths {
		if at != "" && within(at, p) {
			return n, false
		}
	}
	if len(n.Fields) == 0 {
		return n, true
	}
	out := patchNode{Fields: map[string]patchNode{}, Anew: n.Anew}
	for name, f := range n.Fields {
		if left, any := f.drop(join(at, name), paths); any {
			out.Fields[name] = left
		}
	}
	return out, len(out.Fields) > 0 || out.Anew
}

// within says whether the key at path is the one at section, or inside of it.
func within(path, section string) bool {
	return path == section || strings.HasPrefix(path, section+".")
}

// dropMasked is p less what is only the sign for a secret.
func (n patchNode) dropMasked() (patchNode, bool) {
	if len(n.Fields) == 0 {
		return n, !holdsMask(n.Value)
	}
	out := patchNode{Fields: map[string]patchNode{}, Anew: n.Anew}
	for name, f := range n.Fields {
		if left, any := f.dropMasked(); any {
			out.Fields[name] = left
		}
	}
	return out, len(out.Fields) > 0
}

// Unmasked is p less the secrets that stand in it as they are shown.
func (p Patch) Unmasked() Patch {
	n, left := p.root.dropMasked()
	if !left {
		return Patch{}
	}
	return Patch{n}
}

func holdsMask(v any) bool {
	return holds(v, func(s string) bool { return strings.Contains(s, hidden) || strings.Contains(s, "//hidden@") })
}

// holds says whether a text in v is one that is looked for.
func holds(v any, is func(string) bool) bool {
	inside := func(v any) bool { return holds(v, is) }
	switch v := v.(type) {
	case string:
		return is(v)
	case []any:
		return slices.ContainsFunc(v, inside)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), inside)
	}
	return false
}

// Untunable are the keys of p that [Over.Tuned] would not take: where Warmwire listens,
// whom it trusts and calls.
func (p Patch) Untunable() (out []string) {
	for _, path := range p.Paths() {
		if !tunablePath(path) {
			out = append(out, path)
		}
	}
	return out
}

// Variables are the keys of p whose values take anything from the environment.
func (p Patch) Variables() (out []string) {
	p.root.walk(nil, func(parts []string, n patchNode) {
		if holds(n.Value, hasVariable) {
			out = append(out, strings.Join(parts, "."))
		}
	})
	return out
}

func tunablePath(path string) bool {
	listed := func(list []string, rel string) bool {
		return slices.ContainsFunc(list, func(t string) bool {
			return t == rel || strings.HasPrefix(rel, strings.TrimSuffix(t, ".")+".")
		})
	}
	if rest, ok := strings.CutPrefix(path, "defaults."); ok {
		return listed(tunableUpstream, rest)
	}
	section, rest, _ := strings.Cut(path, ".")
	_, rel, _ := strings.Cut(rest, ".")
	switch section {
	case "upstreams":
		return listed(tunableUpstream, rel)
	case "tenants":
		return listed(tunableTenant, rel)
	}
	return listed(tunableTop, path)
}

// applyPatch merges a patch into what the file says. Of a key that is taken away
// there must be one.
func (p *parser) applyPatch(root *yaml.Node, patch Patch) {
	patch.root.walk(nil, func(parts []string, n patchNode) {
		path := strings.Join(parts, ".")
		switch {
		case n.Remove && !p.known(parts):
			p.addf(0, path, "unknown key: `warmwire config default` lists all")
		case holdsMask(n.Value):
			p.addf(0, path, "%s stands for a secret: write the secret itself, or leave the key out to keep it", hidden)
		}
	})
	patch.root.mergeInto(root)
}

// keysAt are the keys that parts is one of, and parts as they name it.
func keysAt(parts []string) (keys []key, rel []string) {
	switch named := nameSections[parts[0]]; {
	case parts[0] == "defaults":
		return upstreamKeys, parts[1:]
	case parts[0] == "upstreams":
		return upstreamKeys, parts[min(2, len(parts)):]
	case named != nil:
		return named, parts[min(2, len(parts)):]
	}
	return topKeys, parts
}

// known says whether there is a key, a section or a name at parts.
func (p *parser) known(parts []string) bool {
	keys, rel := keysAt(parts)
	if len(rel) == 0 {
		return true
	}
	for i := range rel {
		k, section := find(keys, strings.Join(rel[:i+1], "."))
		if k != nil {
			return i == len(rel)-1 || slices.Contains([]kind{kMap, kShares, kWeights}, k.kind) && i == len(rel)-2
		}
		if !section {
			return false
		}
	}
	return true
}

// mergeInto is MergePatch of RFC 7396 §2 for a mapping.
func (n patchNode) mergeInto(to *yaml.Node) {
	if to.Kind != yaml.MappingNode || n.Anew {
		*to = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	for _, name := range slices.Sorted(maps.Keys(n.Fields)) {
		f, at := n.Fields[name], slot(to, name)
		switch {
		case f.Remove && at >= 0:
			to.Content = slices.Delete(to.Content, at-1, at+1)
			continue
		case f.Remove:
			continue
		case at < 0:
			to.Content = append(to.Content, scalarNode(name), &yaml.Node{})
			at = len(to.Content) - 1
		}
		if f.Fields != nil {
			f.mergeInto(to.Content[at])
			continue
		}
		to.Content[at] = valueNode(f.Value)
	}
}

// slot is where the value of a key stands in a mapping, -1 for nowhere.
func slot(mapping *yaml.Node, key string) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return i + 1
		}
	}
	return -1
}

func scalarNode(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: yaml.DoubleQuotedStyle}
}

// valueNode is a value as the file would have it.
func valueNode(v any) *yaml.Node {
	switch v := v.(type) {
	case string:
		return scalarNode(v)
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: v.String()}
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: fmt.Sprint(v)}
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range v {
			n.Content = append(n.Content, valueNode(item))
		}
		return n
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			n.Content = append(n.Content, scalarNode(name), valueNode(v[name]))
		}
		return n
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}
