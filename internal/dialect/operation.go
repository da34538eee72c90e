// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"math/bits"
	"net/http"
	"strings"
	"time"
)

// Operation names what a request asks of a model API as the GenAI semantic conventions
// of OpenTelemetry do (gen_ai.operation.name); "" = nothing that they name.
func Operation(k Kind, method, path string) string {
	if k == None || k == "" || method != http.MethodPost {
		return ""
	}
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimRight(path, "/")
	switch {
	case strings.HasSuffix(path, "/chat/completions"), strings.HasSuffix(path, "/messages"), strings.HasSuffix(path, "/responses"):
		return "chat"
	case strings.HasSuffix(path, "/completions"):
		return "text_completion"
	case strings.HasSuffix(path, ":streamGenerateContent"), strings.HasSuffix(path, ":generateContent"):
		return "generate_content"
	case strings.HasSuffix(path, "/embeddings"), strings.HasSuffix(path, ":embedContent"), strings.HasSuffix(path, ":batchEmbedContents"):
		return "embeddings"
	}
	return ""
}

const (
	gapBounds = 14
	leastGap  = 10 * time.Millisecond
)

// Gaps counts the times between token-bearing events by their length: up to 10 ms, and
// each bound twice the one before, up to 81.92 s; the last one counts what is longer.
// These are the buckets of the GenAI semantic conventions.
type Gaps [gapBounds + 1]uint32

// GapBounds are the upper bounds of Gaps in seconds.
func GapBounds() []float64 {
	bounds := make([]float64, gapBounds)
	for i := range bounds {
		bounds[i] = (leastGap << i).Seconds()
	}
	return bounds
}

func (g *Gaps) add(d time.Duration) {
	i := 0
	if d > 0 {
		i = bits.Len64(uint64((d - 1) / leastGap))
	}
	g[min(i, gapBounds)]++
}
