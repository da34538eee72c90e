// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// An Over is what stands over the file while Warmwire runs.
type Over struct {
	Patch Patch             // of what the file says
	Tuned map[string]string // by full dotted path, for keys that may be changed so; over Patch
}

// With is o with a patch over all of it: what was tuned at the same keys goes.
func (o Over) With(p Patch) Over {
	out := Over{o.Patch, maps.Clone(o.Tuned)}
	paths := p.Paths()
	for _, path := range slices.Sorted(maps.Keys(o.Tuned)) {
		for _, q := range paths {
			switch {
			case strings.HasPrefix(q, path+"."): // what else was tuned there stays
				out.Patch = out.Patch.With(patchAt(strings.Split(path, "."), o.Tuned[path]))
			case within(path, q):
			default:
				continue
			}
			delete(out.Tuned, path)
			break
		}
	}
	out.Patch = out.Patch.With(p)
	return out
}

// patchAt puts a value of [Over.Tuned] in place of what the file has.
func patchAt(parts []string, text string) Patch {
	var doc yaml.Node // not values: a name may look like a number, and 010 is no 8 here
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil || len(doc.Content) != 1 {
		panic(fmt.Sprintf("config: internal error: %v", err)) // it is in force
	}
	n := patchNode{Value: asText(doc.Content[0])}
	if m, ok := n.Value.(map[string]any); ok {
		n = patchNode{Fields: map[string]patchNode{}, Anew: true}
		for name, item := range m {
			n.Fields[name] = patchNode{Value: item}
		}
	}
	for _, part := range slices.Backward(parts) {
		n = patchNode{Fields: map[string]patchNode{part: n}}
	}
	return Patch{n}
}

// asText is a node of the file with its scalars as they are written.
func asText(n *yaml.Node) any {
	switch n.Kind {
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			list = append(list, asText(item))
		}
		return list
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			m[n.Content[i].Value] = asText(n.Content[i+1])
		}
		return m
	}
	return n.Value
}

// Without is o without what it says at paths, or below them.
func (o Over) Without(paths []string) Over {
	out := Over{o.Patch.Drop(paths), maps.Clone(o.Tuned)}
	maps.DeleteFunc(out.Tuned, func(path, _ string) bool {
		return slices.ContainsFunc(paths, func(q string) bool { return within(path, q) })
	})
	return out
}

// Tune is o with values tuned; "" takes the file's value back.
func (o Over) Tune(changes map[string]string) Over {
	out := Over{o.Patch, maps.Clone(o.Tuned)}
	if out.Tuned == nil {
		out.Tuned = make(map[string]string, len(changes))
	}
	for path, text := range changes {
		if text == "" {
			delete(out.Tuned, path)
			out.Patch = out.Patch.Drop([]string{path})
		} else {
			out.Tuned[path] = text
		}
	}
	return out
}

// An overImage is an Over in the form that one process writes and another reads. It is no
// JSON Merge Patch, which cannot say that an object stands in place of what was there.
type overImage struct {
	Patch patchNode         `json:"patch,omitzero"`
	Tuned map[string]string `json:"tuned,omitzero"`
}

// Marshal writes o for [UnmarshalOver]. It may hold secrets, as the file may.
func (o Over) Marshal() ([]byte, error) {
	return json.Marshal(overImage{o.Patch.root, o.Tuned})
}

// UnmarshalOver reads what [Over.Marshal] wrote, perhaps of another version. Whether the
// keys and values fit this one, [LoadOver] says.
func UnmarshalOver(text []byte) (Over, error) {
	var im overImage
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	if err := dec.Decode(&im); err != nil {
		return Over{}, fmt.Errorf("what stands over the file: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Over{}, errors.New("what stands over the file: more behind it")
	}
	return Over{Patch{im.Patch}, im.Tuned}, nil
}
