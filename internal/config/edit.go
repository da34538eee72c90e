// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// errByHand says that a file is written in a way that Edit does not change.
var errByHand = errors.New("the file must be edited by hand")

// Edit puts settings into the text of a file, by their full dotted paths as for
// [LoadTuned], and leaves everything else as it is: comments, order, anchors of nothing.
// What it returns loads to the same as the old text with the changes over it; else, and
// where a value goes over several lines, it is an error.
func Edit(text []byte, changes map[string]string, getenv Env) ([]byte, error) {
	want, _, err := parse("file", text, getenv, changes)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		if text, err = edit(text, path, changes[path]); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	got, _, err := parse("file", text, getenv, nil)
	if err != nil || !bytes.Equal(got.Show(), want.Show()) {
		return nil, fmt.Errorf("%w: what came out does not mean the same", errByHand)
	}
	return text, nil
}

// edit puts one value in.
func edit(text []byte, path, value string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	parts := strings.Split(path, ".")
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
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// flow writes a value with the keys above it in one line.
func flow(parts []string, value string) string {
	for _, part := range slices.Backward(parts) {
		value = "{" + part + ": " + value + "}"
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
		b.WriteString(strings.Repeat(" ", indent+2*i) + part + end)
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
		more := parts[0] + ": " + flow(parts[1:], value)
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
	case n.Kind == yaml.SequenceNode && n.Style&yaml.FlowStyle != 0 && !bytes.ContainsAny(line, `'"`):
		end := bytes.IndexByte(line, ']')
		return end + 1, end >= 0 && !bytes.ContainsAny(line[1:end], "[{")
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
