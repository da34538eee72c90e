// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Access is the access log.
type Access struct {
	Sample   float64
	Statuses map[string]float64 // share by class of status, such as 4xx
	Summary  Duration           // 0 = none
	Format   string             // text, json or msgpack
	File     string             // "" = with the log
}

// access is the access log, whose format is that of the log unless it says another.
func (p *parser) access(logFormat string) Access {
	get := func(key string) value { return p.get(topKeys, "log.access."+key, "log.access."+key) }
	a := Access{
		Sample: float(get("sample").text), Summary: duration(get("summary").text), Format: get("format").text, File: get("file").text,
		Statuses: make(map[string]float64),
	}
	for class, share := range get("statuses").dict {
		a.Statuses[class] = float(share)
	}
	if a.Format == "auto" {
		a.Format = logFormat
	}
	return a
}

// acceptsShares checks a map of shares by name.
func (k *key) acceptsShares(dict map[string]string) error {
	for name, text := range dict {
		if !slices.Contains(k.options, name) {
			return fmt.Errorf("%q is not known here: use %s", name, strings.Join(k.options, ", "))
		}
		if share, err := strconv.ParseFloat(text, 64); err != nil || !(share >= 0 && share <= 1) {
			return fmt.Errorf("%s: %q is no number from 0 to 1", name, text)
		}
	}
	return nil
}

func (c *checker) access() {
	addf := func(key, format string, args ...any) {
		c.addf(c.line("log.access."+key), "log.access."+key, format, args...)
	}
	a := c.cfg.Log.Access
	if !(a.Sample >= 0 && a.Sample <= 1) {
		addf("sample", "%v is outside 0 to 1", a.Sample)
	}
	if a.Summary > 0 && time.Duration(a.Summary) < time.Second {
		addf("summary", "%v is less than 1s", a.Summary)
	}
	if a.Format == "msgpack" && a.File == "" {
		addf("format", "msgpack is not for reading beside the log: set log.access.file")
	}
	if strings.HasPrefix(a.File, "~") {
		addf("file", "~ is no folder here: write ${HOME}")
	}
}

func (a Access) show() map[string]any {
	return map[string]any{"sample": a.Sample, "statuses": a.Statuses, "summary": a.Summary.String(), "format": a.Format, "file": a.File}
}
