// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// masked is what is shown of a secret.
func masked(s string) string {
	if s == "" {
		return ""
	}
	return hidden
}

// plain is a secret where it is only compared.
func plain(s string) string { return s }

// tree is c as the file could have it, in the types of JSON. With plain it is for
// comparing only.
func (c *Config) tree(conceal func(string) string) map[string]any {
	text, err := json.Marshal(c.show(conceal))
	var all map[string]any
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		panic(fmt.Sprintf("config: internal error: %v", err)) // plain maps and strings
	}
	dollars(all)
	return all
}

// dollars writes each as $$, as in the file, and null as an empty list.
func dollars(v any) any {
	switch v := v.(type) {
	case nil:
		return []any{} // a list without a value: null would be none in a patch
	case string:
		return strings.ReplaceAll(v, "$", "$$")
	case []any:
		for i := range v {
			v[i] = dollars(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = dollars(v[name])
		}
	}
	return v
}

// Tree is c as the file could have it, in the types of JSON, with secrets as ****.
func (c *Config) Tree() map[string]any { return c.tree(masked) }

// Tag is the same for configurations that are the same, secrets included. It tells
// nothing of them to who does not know key.
func (c *Config) Tag(key []byte) string {
	text, err := json.Marshal(c.tree(plain)) // the names of maps are sorted
	if err != nil {
		panic(fmt.Sprintf("config: internal error: %v", err))
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// A Change is one key with its value before and after, as they would stand in the file;
// "" = there was or is none. Of secrets only that they differ is said.
type Change struct{ Key, From, To string }

// Diff lists what differs, in the order of the keys. What is there on one side only is
// one change.
func Diff(before, after *Config) []Change {
	d := differ{shownA: before.Tree(), shownB: after.Tree()}
	d.compare(nil, before.tree(plain), after.tree(plain))
	return d.changes
}

type differ struct {
	shownA, shownB map[string]any
	changes        []Change
}

func (d *differ) compare(parts []string, a, b map[string]any) {
	names := slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		at := append(slices.Clip(parts), name)
		subA, mapA := a[name].(map[string]any)
		subB, mapB := b[name].(map[string]any)
		switch {
		case mapA && mapB && subA["disabled"] == nil && subB["disabled"] == nil:
			d.compare(at, subA, subB)
		case !reflect.DeepEqual(a[name], b[name]):
			d.changes = append(d.changes, Change{strings.Join(at, "."), shownAt(d.shownA, at), shownAt(d.shownB, at)})
		}
	}
}

// shownAt is the value at a path as it is shown, "" for none.
func shownAt(tree any, parts []string) string {
	for _, part := range parts {
		branch, _ := tree.(map[string]any)
		var ok bool
		if tree, ok = branch[part]; !ok {
			return ""
		}
	}
	return asWritten(tree)
}

// same says whether two configurations are, secrets included.
func same(a, b *Config) bool { return reflect.DeepEqual(a.tree(plain), b.tree(plain)) }
