// SPDX-License-Identifier: Apache-2.0

//go:build linux

package deploy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

// reloadCount and reloadStreams are small where each change waits for them; 300 reloads
// under 100 streams and 100 WebSockets are the aim (docs/deploy.md).
var (
	reloadCount   = flag.Int("reloads", 30, "how often TestReloadsLoseNothing changes the configuration")
	reloadStreams = flag.Int("reload-streams", 10, "its streams, and as many WebSockets")
)

// A reloading is a process whose configuration changes.
type reloading struct {
	t           *testing.T
	dir, file   string
	ports       []int
	up          string
	base, admin string
}

// config is never the same twice: something of the upstream that runs, of others, of the
// listener, and names that come and go.
func (r *reloading) config(n int) string {
	text := fmt.Sprintf("listen: {address: '127.0.0.1:%d', server_timing: %v}\nadmin: {address: '127.0.0.1:%d', token_file: %s}\nstate_dir: %s\n"+
		"log: {level: warn, access: {sample: 0}}\nlimits: {connections: 2000}\n", r.ports[0], n%3 == 1, r.ports[1], filepath.Join(r.dir, "token"), r.dir)
	text += fmt.Sprintf("upstreams:\n  up: {url: '%s', headers: {set: {X-Reload: '%d'}}, buffer: {stream_limit: %dKiB}, pool: {max_connections: %d}}\n", r.up, n, 256+n%5, 8+n%4)
	if n > 0 {
		text += fmt.Sprintf("  brief%d: {url: 'http://127.0.0.1:9/%d'}\n", n, n)
	}
	if n%2 == 1 {
		text += "  odd: {url: '" + r.up + "', limits: {concurrency: 4}}\n"
	}
	return text
}

func (r *reloading) write(n int) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(r.config(n)), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// reload has the process read its file, and says how long that took.
func (r *reloading) reload(n int) time.Duration {
	r.t.Helper()
	r.write(n)
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.admin+"/v1/reload", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(read(r.t, filepath.Join(r.dir, "token"))))
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		r.t.Fatalf("reload %d: %s %s", n, resp.Status, body)
	}
	return time.Since(start)
}

// A footprint is what a process holds.
type footprint struct{ goroutines, descriptors, heap, collections float64 }

var footprintOf = regexp.MustCompile(`(?m)^(go_goroutines|process_open_fds|go_memstats_heap_alloc_bytes|go_gc_duration_seconds_count) (\S+)$`)

func (r *reloading) footprint() (f footprint) {
	r.t.Helper()
	into := map[string]*float64{"go_goroutines": &f.goroutines, "process_open_fds": &f.descriptors, "go_memstats_heap_alloc_bytes": &f.heap, "go_gc_duration_seconds_count": &f.collections}
	for _, m := range footprintOf.FindAllStringSubmatch(fetch(r.t, r.admin+"/metrics"), -1) {
		var err error
		if *into[m[1]], err = strconv.ParseFloat(m[2], 64); err != nil {
			r.t.Fatal(err)
		}
	}
	return f
}

// settled is the least that the process holds over some scrapes, which also make the
// garbage that lets its collector run, twice so that it knows what is garbage.
func (r *reloading) settled() footprint {
	least := r.footprint()
	for first := least.collections; least.collections < first+2; {
		f := r.footprint()
		least = footprint{min(least.goroutines, f.goroutines), min(least.descriptors, f.descriptors), min(least.heap, f.heap), f.collections}
	}
	return least
}

// talk echoes numbers over a WebSocket until ctx ends.
func talk(ctx context.Context, c *websocket.Conn) error {
	for n := 0; ctx.Err() == nil; n++ {
		if err := echo(c, strconv.Itoa(n)); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		pause := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
	return c.Close()
}

// TestReloadsLoseNothing changes the configuration again and again under streams and
// WebSockets that are held against every byte, and wants back afterwards what the
// old configurations held.
func TestReloadsLoseNothing(t *testing.T) {
	finish := make(chan struct{})
	dir := t.TempDir()
	r := &reloading{t: t, dir: dir, file: filepath.Join(dir, "warmwire.yaml"), ports: testenv.FreePorts(t, 2), up: lines(t, finish).URL}
	r.base, r.admin = fmt.Sprintf("http://127.0.0.1:%d", r.ports[0]), fmt.Sprintf("http://127.0.0.1:%d", r.ports[1])
	r.write(0)
	cmd := exec.Command(program(t), "run", "-c", r.file)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	launch(t, cmd, r.ports[0])

	r.round(max(5, *reloadCount/5), finish) // so that caches and pools have what they keep
	before := r.settled()
	amid, longest, asked := r.round(*reloadCount, finish)
	after := r.untilBack(before)
	t.Logf("%d reloads, the longest %s, under %d streams and %d WebSockets; %d short requests; before %+v, amid %+v, after %+v",
		*reloadCount, longest.Round(time.Millisecond), *reloadStreams, *reloadStreams, asked, before, amid, after)
}

// round reloads under load, and ends the load.
func (r *reloading) round(reloads int, finish chan struct{}) (amid footprint, longest time.Duration, asked int) {
	r.t.Helper()
	client, load := &http.Client{Transport: &http.Transport{}}, &loadgen{base: r.base}
	defer client.CloseIdleConnections()
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	var streaming, others sync.WaitGroup
	cut := make(chan error, 2**reloadStreams)
	for range *reloadStreams {
		resp, err := client.Get(r.base + "/up/stream")
		if err != nil {
			r.t.Fatal(err)
		}
		streaming.Go(func() { cut <- readStream(resp) })
		c, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(r.base, "http")+"/up/socket", nil)
		if err != nil {
			r.t.Fatal(err)
		}
		others.Go(func() { cut <- talk(ctx, c) })
	}
	others.Go(func() { load.run(ctx, client) })
	for n := range reloads {
		longest = max(longest, r.reload(1+n))
	}
	amid = r.footprint()
	stop()
	others.Wait()
	for range *reloadStreams { // each stream takes one
		finish <- struct{}{}
	}
	streaming.Wait()
	close(cut)
	for err := range cut {
		if err != nil {
			r.t.Error(err)
		}
	}
	if load.asked == 0 || len(load.wrong) > 0 {
		r.t.Errorf("%d of %d requests failed: %v", len(load.wrong), load.asked, errors.Join(load.wrong...))
	}
	r.reload(0)
	return amid, longest, load.asked
}

// untilBack waits until the process holds no more than before, but for a little.
func (r *reloading) untilBack(before footprint) footprint {
	r.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for range tick.C {
		now := r.settled()
		if now.goroutines <= before.goroutines+5 && now.descriptors <= before.descriptors+5 && now.heap <= before.heap+1<<20 {
			return now
		}
		if time.Now().After(deadline) {
			r.t.Errorf("before %+v, after %+v", before, now)
			return now
		}
	}
	return before
}
