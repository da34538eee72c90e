// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"encoding/hex"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"unicode/utf8"
)

// words mixes scripts so that one to four byte runes are in every longer text.
func words() []string {
	return []string{
		"the", "stream", "keeps", "its", "pace", "and", "every", "token", "arrives", "in", "order",
		"naïve", "Größe", "привет", "你好", "世界", "東京", "ありがとう", "한국어", "🙂", "🚀", "👩‍💻", "\"quoted\"", "back\\slash", "line\n",
	}
}

// content makes the text of one answer.
type content struct {
	seed  uint64
	rand  *rand.Rand
	words []string
	size  int
}

func newContent(body []byte, size int) *content {
	h := fnv.New64a()
	_, _ = h.Write(body) // a hash never fails
	seed := h.Sum64()
	return &content{seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), words: words(), size: size}
}

// id returns an id that depends on nothing but the request.
func (c *content) id(prefix string) string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(prefix))
	var b [8]byte
	for i := range b {
		b[i] = byte(c.seed >> (8 * i))
	}
	_, _ = h.Write(b[:])
	return prefix + hex.EncodeToString(h.Sum(nil))[:24]
}

// token returns the next token.
func (c *content) token() string {
	word := c.words[c.rand.IntN(len(c.words))] + " "
	if c.size == 0 {
		return word
	}
	for len(word) > c.size {
		_, n := utf8.DecodeLastRuneInString(word)
		word = word[:len(word)-n]
	}
	return word + strings.Repeat("x", c.size-len(word))
}

func (c *content) tokens(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = c.token()
	}
	return list
}
