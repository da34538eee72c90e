// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Measures of the plot in its own units.
const (
	plotWidth   = 720
	panelHeight = 320
	plotLeft    = 64
	plotRight   = 24
	plotTop     = 48
	plotBottom  = 52
	curvePoints = 400 // quantiles drawn of a long distribution
)

// logFrom is the ratio of the largest to the smallest value from which the axis
// is logarithmic: below, decades would hold nothing.
const logFrom = 20

const plotStyle = `<style>
text{font:13px system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}
.bg{fill:#fff}.grid{stroke:#ddd}.axis{stroke:#555}
.c0{stroke:#b34700}.c1{stroke:#0a58a8;stroke-dasharray:7 3}.curve{fill:none;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#eee}.bg{fill:#181818}.grid{stroke:#3a3a3a}.axis{stroke:#aaa}.c0{stroke:#ff9e57}.c1{stroke:#6cb6ff}}
</style>
`

// WriteSVG draws the distributions of TTFT and of the gaps between chunks as
// cumulative shares, one curve a leg. It fails if there is nothing to draw.
func WriteSVG(w io.Writer, s *Summary) error {
	var b strings.Builder
	n := 0
	for _, m := range []Metric{TTFT, ICL} {
		if p, ok := newPanel(s, m, n*panelHeight); ok {
			p.draw(&b)
			n++
		}
	}
	if n == 0 {
		return fmt.Errorf("nothing to plot: no call had a token")
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Cumulative distributions of TTFT and inter-chunk latency">
%s<rect class="bg" width="100%%" height="100%%"/>
%s</svg>
`, plotWidth, n*panelHeight, plotStyle, b.String())
	return err
}

// A panel is one pair of axes with its curves.
type panel struct {
	title    string
	top      int
	low, hi  float64 // ends of the axis, in ms
	log      bool
	curves   []*Dist
	legNames []string
}

func newPanel(s *Summary, m Metric, top int) (panel, bool) {
	p := panel{title: m.title(), top: top, low: math.Inf(1), hi: math.Inf(-1)}
	for i, l := range s.Legs {
		d := l.Dist(m)
		p.curves = append(p.curves, d)
		p.legNames = append(p.legNames, fmt.Sprintf("%s (n = %d)", Leg(i), d.Len()))
		if d.Len() > 0 {
			p.low, p.hi = min(p.low, ms(d.Quantile(0))), max(p.hi, ms(d.Quantile(1)))
		}
	}
	if math.IsInf(p.low, 1) {
		return panel{}, false
	}
	p.fitAxis()
	return p, true
}

// fitAxis rounds the axis outwards.
func (p *panel) fitAxis() {
	if p.hi >= logFrom*max(p.low, ms(time.Microsecond)) && p.low > 0 {
		p.log = true
		p.low = math.Pow(10, math.Floor(math.Log10(p.low)))
		p.hi = math.Pow(10, math.Ceil(math.Log10(p.hi)))
		return
	}
	p.hi = max(p.hi, ms(time.Microsecond))
	step := tickStep(p.hi - min(p.low, 0.8*p.hi))
	p.low = math.Floor(min(p.low, 0.8*p.hi)/step) * step
	p.hi = math.Ceil(p.hi/step) * step
}

// tickStep is a round step that makes four to ten of a span.
func tickStep(span float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(span)))
	for _, f := range []float64{0.1, 0.2, 0.5, 1} {
		if span/(f*unit) <= 10 {
			return f * unit
		}
	}
	return unit
}

func (p *panel) ticks() (at []float64) {
	if p.log {
		for v := p.low; v <= p.hi*1.001; v *= 10 {
			at = append(at, v)
		}
		return at
	}
	step := tickStep(p.hi - p.low)
	for i := 0; float64(i)*step <= (p.hi-p.low)*1.001; i++ {
		at = append(at, p.low+float64(i)*step)
	}
	return at
}

func (p *panel) x(v float64) float64 {
	share := (v - p.low) / (p.hi - p.low)
	if p.log {
		share = math.Log10(v/p.low) / math.Log10(p.hi/p.low)
	}
	return plotLeft + share*(plotWidth-plotLeft-plotRight)
}

func (p *panel) y(share float64) float64 {
	return float64(p.top) + plotTop + (1-share)*(panelHeight-plotTop-plotBottom)
}

func (p *panel) draw(b *strings.Builder) {
	fmt.Fprintf(b, `<text class="t" x="%d" y="%d">%s</text>`+"\n", plotLeft, p.top+24, p.title)
	for i := range 5 {
		share := float64(i) / 4
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%.0f %%</text>`+"\n",
			plotLeft, plotWidth-plotRight, p.y(share), p.y(share), plotLeft-8, p.y(share)+4, share*100)
	}
	for _, v := range p.ticks() {
		fmt.Fprintf(b, `<line class="axis" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><text x="%.1f" y="%.1f" text-anchor="middle">%.6g</text>`+"\n",
			p.x(v), p.x(v), p.y(0), p.y(0)+5, p.x(v), p.y(0)+20, v)
	}
	fmt.Fprintf(b, `<line class="axis" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`+"\n", plotLeft, plotWidth-plotRight, p.y(0), p.y(0))
	scale := ""
	if p.log {
		scale = ", logarithmic"
	}
	fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="middle">milliseconds%s</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, p.y(0)+40, scale)
	fmt.Fprintf(b, `<text transform="translate(16 %.1f) rotate(-90)" text-anchor="middle">share of values</text>`+"\n", p.y(0.5))
	for i, d := range p.curves {
		if d.Len() > 0 {
			fmt.Fprintf(b, `<path class="curve c%d" d="%s"/>`+"\n", i, p.path(d))
		}
		x := plotWidth - plotRight - 190*(len(p.curves)-i)
		fmt.Fprintf(b, `<line class="curve c%d" x1="%d" x2="%d" y1="%d" y2="%d"/><text x="%d" y="%d">%s</text>`+"\n",
			i, x, x+28, p.top+20, p.top+20, x+36, p.top+24, p.legNames[i])
	}
}

// path is a staircase: the share of values up to and including each.
func (p *panel) path(d *Dist) string {
	steps := min(d.Len(), curvePoints)
	var b strings.Builder
	fmt.Fprintf(&b, "M%.1f %.1f", p.x(ms(d.Quantile(0))), p.y(0))
	for i := range steps {
		q := 0.0
		if steps > 1 {
			q = float64(i) / float64(steps-1)
		}
		fmt.Fprintf(&b, "H%.1fV%.1f", p.x(ms(d.Quantile(q))), p.y(float64(i+1)/float64(steps)))
	}
	fmt.Fprintf(&b, "H%d", plotWidth-plotRight)
	return b.String()
}
