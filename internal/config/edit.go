// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// An Editing makes another text of a file's, or finds that it cannot; nil leaves the file
// as it is.
type Editing = func(text []byte, getenv Env) ([]byte, error)

// errByHand says that a file is written in a way that Edit does not change.
var errByHand = errors.New("the file must be edited by hand")

// Edit puts settings into the text of a file, by their full dotted paths as in
// [Over.Tuned], and leaves everything else as it is: comments, order, anchors of nothing.
// What it returns loads to the same as the old text with the changes over it; else, and
// where a value goes over several lines, it is an error.
func Edit(text []byte, changes map[string]string, getenv Env) ([]byte, error) {
	want, _, err := parse("file", text, getenv, Over{Tuned: changes})
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		if text, err = edit(text, strings.Split(path, "."), changes[path]); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	got, _, err := parse("file", text, getenv, Over{})
	if err != nil || !bytes.Equal(got.Show(), want.Show()) {
		return nil, errOther
	}
	return text, nil
}

var errOther = fmt.Errorf("%w: what came out does not mean the same", errByHand)

// EditPatch is Edit for a patch. What it returns loads by itself, and with rest over it to
// the same as want.
func EditPatch(text []byte, patch Patch, getenv Env, rest Over, want *Config) ([]byte, error) {
	var err error
	patch.root.walk(nil, func(parts []string, n patchNode) {
		switch {
		case err != nil:
			return
		case n.Remove:
			text, err = cut(text, parts)
		case n.Fields != nil:
			text, err = edit(text, parts, "{}")
		default:
			text, err = edit(text, parts, inFlow(n.Value))
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", strings.Join(parts, "."), err)
		}
	})
	if err != nil {
		return nil, err
	}
	if _, _, err := parse("file", text, getenv, Over{}); err != nil {
		return nil, fmt.Errorf("without what was changed before and not saved it would be no good file: %w", err)
	}
	got, _, err := parse("file", text, getenv, rest)
	if err != nil || !same(got, want) {
		return nil, errOther
	}
	return text, nil
}

// edit puts one value in.
func edit(text []byte, parts []string, value string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return appendLines(text, parts, value), nil
	}
	at := doc.Content[0]
	for i, part := range parts {
		child := childOf(at, part)
		switch {
		case child == nil:
			return insert(text, at, parts[i:], value)
		case i == len(parts)-1:
			return replace(text, child, value)
		case child.Kind == yaml.ScalarNode && child.Value == "": // key: with nothing behind it
			return replace(text, child, flow(parts[i+1:], value))
		case child.Kind != yaml.MappingNode:
			return nil, errByHand
		}
		at = child
	}
	return nil, errByHand
}

func childOf(mapping *yaml.Node, key string) *yaml.Node {
	if i := slot(mapping, key); i >= 0 {
		return mapping.Content[i]
	}
	return nil
}

// cut takes a key out, with its value and what stands behind it in its line.
func cut(text []byte, parts []string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil || len(doc.Content) == 0 {
		return text, err
	}
	at := doc.Content[0]
	for i, part := range parts {
		j := slot(at, part)
		switch {
		case j < 0:
			return text, nil // there is none
		case i < len(parts)-1:
			at = at.Content[j]
		case at.Style&yaml.FlowStyle != 0:
			return cutFlow(text, at, j)
		case len(at.Content) == 2 && isMap(parts[:i]):
			// What is left is empty, and {} says so: of a section nothing need be left.
			return cutLast(text, at, at.Content[j])
		default:
			return cutLines(text, at.Content[j-1], at.Content[j])
		}
	}
	return nil, errByHand
}

// isMap says whether parts are a key whose value has names of its own.
func isMap(parts []string) bool {
	if len(parts) == 0 {
		return false
	}
	keys, rel := keysAt(parts)
	k, _ := find(keys, strings.Join(rel, "."))
	return k != nil
}

// cutLast takes the only key out of a mapping, and leaves braces in its place.
func cutLast(text []byte, mapping, value *yaml.Node) ([]byte, error) {
	out, err := cutLines(text, mapping.Content[0], value)
	if err != nil {
		return nil, err
	}
	at := offset(text, mapping.Line, 1)
	return slices.Insert(out, at, []byte(strings.Repeat(" ", mapping.Column-1)+"{}\n")...), nil
}

// cutLines takes out the lines of a key and its value.
func cutLines(text []byte, key, value *yaml.Node) ([]byte, error) {
	start, last := offset(text, key.Line, 1), lastLine(value)
	if last < 0 || len(bytes.TrimSpace(text[start:offset(text, key.Line, key.Column)])) > 0 {
		return nil, errByHand
	}
	end := offset(text, max(last, key.Line)+1, 1)
	if end < 0 {
		end = len(text)
	}
	return slices.Delete(slices.Clone(text), start, end), nil
}

// cutFlow takes a key out of braces, whose value is at i.
func cutFlow(text []byte, mapping *yaml.Node, i int) ([]byte, error) {
	key, value := mapping.Content[i-1], mapping.Content[i]
	start := offset(text, key.Line, key.Column)
	if i+1 < len(mapping.Content) {
		end := offset(text, mapping.Content[i+1].Line, mapping.Content[i+1].Column)
		if start < 0 || end < start {
			return nil, errByHand
		}
		return slices.Delete(slices.Clone(text), start, end), nil
	}
	end := offset(text, value.Line, value.Column)
	if start < 0 || end < start {
		return nil, errByHand
	}
	length, ok := span(text[end:], value)
	if !ok {
		return nil, errByHand
	}
	if before := bytes.TrimRight(text[:start], " "); i > 1 {
		if start = len(before) - 1; start < 0 || before[start] != ',' {
			return nil, errByHand
		}
	}
	return slices.Delete(slices.Clone(text), start, end+length), nil
}

// bare is text that needs no quotes anywhere.
var bare = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]*$`)

// inFlow writes a value in one line.
func inFlow(v any) string {
	switch v := v.(type) {
	case string:
		if bare.MatchString(v) && !strings.EqualFold(v, "null") {
			return v
		}
		text, _ := json.Marshal(v) // a string always can be
		return string(text)
	case []any:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = inFlow(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		var items []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			items = append(items, inFlow(name)+": "+inFlow(v[name]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	case nil:
		return "null"
	}
	return fmt.Sprint(v)
}

// flow writes a value with the keys above it in one line.
func flow(parts []string, value string) string {
	for _, part := range slices.Backward(parts) {
		value = "{" + inFlow(part) + ": " + value + "}"
	}
	return value
}

func appendLines(text []byte, parts []string, value string) []byte {
	if n := len(text); n > 0 && text[n-1] != '\n' {
		text = append(slices.Clip(text), '\n')
	}
	return append(slices.Clip(text), block(parts, value, 0)...)
}

// block writes a value with the keys above it, a line each.
func block(parts []string, value string, indent int) string {
	var b strings.Builder
	for i, part := range parts {
		end := ":\n"
		if i == len(parts)-1 {
			end = ": " + value + "\n"
		}
		b.WriteString(strings.Repeat(" ", indent+2*i) + inFlow(part) + end)
	}
	return b.String()
}

// insert adds keys that are not there to a mapping.
func insert(text []byte, mapping *yaml.Node, parts []string, value string) ([]byte, error) {
	if mapping.Style&yaml.FlowStyle != 0 {
		at := offset(text, mapping.Line, mapping.Column)
		if at < 0 || text[at] != '{' {
			return nil, errByHand
		}
		more := inFlow(parts[0]) + ": " + flow(parts[1:], value)
		if len(mapping.Content) > 0 {
			more += ", "
		}
		return slices.Insert(slices.Clone(text), at+1, []byte(more)...), nil
	}
	if len(mapping.Content) == 0 {
		return nil, errByHand
	}
	last := lastLine(mapping)
	if last < 0 {
		return nil, errByHand
	}
	at := offset(text, last+1, 1)
	if at < 0 { // the file ends without a line feed
		text, at = append(slices.Clone(text), '\n'), len(text)+1
	}
	return slices.Insert(slices.Clone(text), at, []byte(block(parts, value, mapping.Content[0].Column-1))...), nil
}

// lastLine is the last line that a node reaches, -1 if that cannot be told.
func lastLine(n *yaml.Node) int {
	last := n.Line
	if n.Kind == yaml.ScalarNode && (n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 || strings.Contains(n.Value, "\n")) || n.Kind == yaml.AliasNode {
		return -1
	}
	for _, c := range n.Content {
		l := lastLine(c)
		if l < 0 || c.Style&yaml.FlowStyle != 0 && l != c.Line { // its bracket may be anywhere
			return -1
		}
		last = max(last, l)
	}
	return last
}

// replace writes another value where one stands, in one line.
func replace(text []byte, n *yaml.Node, value string) ([]byte, error) {
	at := offset(text, n.Line, n.Column)
	if at < 0 {
		if n.Value != "" { // nothing stands behind the last key of a file
			return nil, errByHand
		}
		at = len(text)
	}
	length, ok := span(text[at:], n)
	if !ok {
		return nil, errByHand
	}
	if length == 0 {
		value = " " + value
	}
	return slices.Replace(slices.Clone(text), at, at+length, []byte(value)...), nil
}

// span is how long the text of a value is.
func span(rest []byte, n *yaml.Node) (int, bool) {
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	switch {
	case n.Kind == yaml.ScalarNode && n.Style&yaml.SingleQuotedStyle != 0:
		return quoted(line, '\'')
	case n.Kind == yaml.ScalarNode && n.Style&yaml.DoubleQuotedStyle != 0:
		return quoted(line, '"')
	case n.Kind == yaml.ScalarNode && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0:
		return len(n.Value), bytes.HasPrefix(line, []byte(n.Value)) // as it is written
	case n.Kind != yaml.ScalarNode && n.Style&yaml.FlowStyle != 0:
		return brackets(line)
	}
	return 0, false
}

// brackets is the length of a list or of braces that end in the line.
func brackets(line []byte) (int, bool) {
	depth, last := 0, byte(0)
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case (c == '"' || c == '\'') && bytes.IndexByte([]byte("[{,:"), last) >= 0:
			n, ok := quoted(line[i:], c)
			if !ok {
				return 0, false
			}
			i += n - 1
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return i + 1, true
			}
		case c == '#' && i > 0 && line[i-1] == ' ':
			return 0, false
		}
		if line[i] != ' ' {
			last = line[i]
		}
	}
	return 0, false
}

// quoted is the length of a quoted text with its quotes.
func quoted(line []byte, quote byte) (int, bool) {
	for i := 1; i < len(line); i++ {
		switch {
		case quote == '"' && line[i] == '\\':
			i++
		case line[i] == quote && quote == '\'' && i+1 < len(line) && line[i+1] == quote:
			i++
		case line[i] == quote:
			return i + 1, true
		}
	}
	return 0, false
}

// offset is where a line and column, both from 1, are in text; -1 if they are not.
func offset(text []byte, line, column int) int {
	at := 0
	for range line - 1 {
		end := bytes.IndexByte(text[at:], '\n')
		if end < 0 {
			return -1
		}
		at += end + 1
	}
	for range column - 1 { // columns are counted in characters
		if at >= len(text) || text[at] == '\n' {
			return -1
		}
		at++
		for at < len(text) && text[at]&0xC0 == 0x80 {
			at++
		}
	}
	return at
}
