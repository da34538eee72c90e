// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

const (
	fileVersion = "warmwire-dnscache-1"
	// maxFile bounds what is read: 10,000 names take about 3 MB.
	maxFile = 32 << 20 // 32 MiB
	// saveSoon is how long after a new address the file is written, and
	// saveLater how long after mere refreshes: flash memory wears out.
	saveSoon, saveLater = 5 * time.Second, 10 * time.Minute
)

// A savedCache is the file below its first line, which has the version and the
// SHA-256 of the rest.
type savedCache struct {
	Saved time.Time               `json:"saved"`
	Names []savedName             `json:"names"`
	Boot  map[string][]netip.Addr `json:"bootstrap,omitempty"`
}

type savedName struct {
	Name  string                  `json:"name"`
	Parts map[string]savedAnswers `json:"parts"`
}

type savedAnswers struct {
	Addrs    []netip.Addr  `json:"addrs,omitempty"`
	Services []Service     `json:"services,omitempty"`
	Source   string        `json:"source"`
	System   bool          `json:"system,omitempty"`
	Fetched  time.Time     `json:"fetched"`
	TTL      time.Duration `json:"ttl"`
}

func partName(which int) string { return [parts]string{"a", "aaaa", "https"}[which] }

// encode writes the file's text.
func (c savedCache) encode() ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return sealed(body), nil
}

func sealed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append([]byte(fileVersion+" "+hex.EncodeToString(sum[:])+"\n"), body...)
}

// decodeCache reads what encode wrote.
func decodeCache(b []byte) (savedCache, error) {
	var c savedCache
	first, body, _ := bytes.Cut(b, []byte("\n"))
	version, want, _ := bytes.Cut(first, []byte(" "))
	if string(version) != fileVersion {
		return c, errors.New("it is of another version, or no cache file")
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != string(want) {
		return c, errors.New("it is damaged: its checksum is wrong")
	}
	if err := json.Unmarshal(body, &c); err != nil {
		return savedCache{}, fmt.Errorf("it is damaged: %w", err)
	}
	return c, nil
}

// load fills the cache from the file. A file that cannot be used is left alone,
// and replaced by the next save.
func (r *Resolver) load() {
	if r.cfg.CacheFile == "" {
		return
	}
	b, err := readFile(r.cfg.CacheFile)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var saved savedCache
	if err == nil {
		saved, err = decodeCache(b)
	}
	if err != nil {
		r.event(EventCacheFile, r.cfg.CacheFile, fmt.Errorf("the cache file is ignored: %w", err))
		return
	}
	r.restore(saved)
}

// readFile looks at the file before it opens it, because opening a pipe waits for a
// writer.
func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err == nil {
		err = checkPlain(st)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("it is over %d bytes", maxFile)
	}
	return b, err
}

// checkPlain refuses what is no file, such as a pipe.
func checkPlain(st fs.FileInfo) error {
	if !st.Mode().IsRegular() {
		return errors.New("it is a " + st.Mode().Type().String() + ", not a file")
	}
	return nil
}

// restore takes what can still serve.
func (r *Resolver) restore(saved savedCache) {
	wall, now := r.seams.wall(), r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for host, addrs := range saved.Boot {
		if len(r.boot.known) < maxBootstrap && isName(host) && validAddrs(addrs) {
			r.boot.known[host] = addrs
		}
	}
	for _, n := range saved.Names {
		if len(r.entries) >= r.cfg.MaxEntries {
			return
		}
		if !isName(hostKey(n.Name)) || r.entries[n.Name] != nil || n.Name != hostKey(n.Name) {
			continue
		}
		e := &entry{key: n.Name, index: -1, loaded: true}
		for which := range e.parts {
			if p, ok := n.Parts[partName(which)].part(which, wall, now); ok {
				e.parts[which] = p
			}
		}
		if e.hasGood(now, r.cfg.Stale) {
			r.entries[n.Name] = e
			e.render(now, r.cfg.Stale)
		}
	}
}

func validAddrs(addrs []netip.Addr) bool {
	for _, a := range addrs {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" || a.Is4In6() {
			return false
		}
	}
	return len(addrs) > 0 && len(addrs) <= maxRecords
}

// part turns saved records into a part. How old they are is told by the wall
// clock, which may be wrong on a machine that has just started: records from the
// future count as just out of their time.
func (s savedAnswers) part(which int, wall time.Time, now time.Duration) (part, bool) {
	if s.TTL < 0 || s.TTL > maxTTL || len(s.Source) > 300 {
		return part{}, false
	}
	age := wall.Sub(s.Fetched)
	if age < 0 {
		age = s.TTL + 1
	}
	p := part{state: partGood, source: s.Source, system: s.System, fetched: now - age, ttl: s.TTL}
	if which == partHTTPS {
		p.services = s.Services
		return p, len(p.services) > 0 && len(p.services) <= maxRecords
	}
	p.addrs = s.Addrs
	return p, validAddrs(p.addrs)
}

// snapshot collects what is worth keeping: good answers, not suspect ones.
func (r *Resolver) snapshot() savedCache {
	r.mu.RLock()
	defer r.mu.RUnlock()
	wall, now := r.seams.wall(), r.now()
	c := savedCache{Saved: wall, Boot: map[string][]netip.Addr{}}
	for host, addrs := range r.boot.known {
		c.Boot[host] = addrs
	}
	for key, e := range r.entries {
		if key != hostKey(key) || !e.hasGood(now, r.cfg.Stale) {
			continue
		}
		n := savedName{Name: key, Parts: map[string]savedAnswers{}}
		for which := range e.parts {
			if p := &e.parts[which]; p.good(now, r.cfg.Stale) {
				n.Parts[partName(which)] = savedAnswers{
					Addrs: p.addrs, Services: p.services, Source: p.source, System: p.system,
					Fetched: wall.Add(p.fetched - now), TTL: p.ttl,
				}
			}
		}
		c.Names = append(c.Names, n)
	}
	return c
}

// save writes the file as a whole or not at all.
func (r *Resolver) save() {
	b, err := r.snapshot().encode()
	if err == nil {
		err = replaceFile(r.cfg.CacheFile, b)
	}
	if err != nil {
		// The name of the temporary file is another one each time.
		if e, ok := errors.AsType[*os.PathError](err); ok {
			err = fmt.Errorf("%s: %w", e.Op, e.Err)
		}
		err = fmt.Errorf("write the cache file: %w", err)
	}
	r.complain(EventCacheFile, r.cfg.CacheFile, err)
}

// replaceFile is atomic: a reader, and a machine that loses power, finds the old
// text or the new one. It refuses to put the file in the place of what is no file:
// as root it would replace /dev/null.
func replaceFile(path string, b []byte) error {
	if st, err := os.Lstat(path); err == nil {
		if err := checkPlain(st); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to tell
	}
	return err
}

// keepFile writes the file when there is something new, and when ctx ends.
func (r *Resolver) keepFile(ctx context.Context) {
	if r.cfg.CacheFile == "" {
		return
	}
	tick := time.NewTicker(saveSoon)
	defer tick.Stop()
	last := r.now()
	for {
		select {
		case <-ctx.Done():
			if soon, later := r.unsaved(); soon || later {
				r.save()
			}
			return
		case <-tick.C:
			r.mu.RLock()
			due := r.changed || r.touched && r.now()-last >= saveLater
			r.mu.RUnlock()
			if due {
				last = r.now()
				r.unsaved()
				r.save()
			}
		}
	}
}

// unsaved reports whether records, or only their times, have changed, and takes
// them as saved.
func (r *Resolver) unsaved() (records, times bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	records, times = r.changed, r.touched
	r.changed, r.touched = false, false
	return records, times
}
