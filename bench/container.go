// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The small container: the case of a gateway that was killed because it held answers
// for slow clients.
const (
	containerBytes   = 64_000_000
	containerReaders = 50
	containerAnswer  = 10_000_000
)

// A contained is what became of a proxy in it.
type contained struct {
	spec  spec
	peak  int64 // of the group
	rss   int64 // of the process, at the end; 0 = it is gone
	sock  int64 // the kernel's for its sockets, most (version 1) or at the end (version 2)
	kills int   // by the kernel
	whole int   // answers that arrived byte for byte
}

// errNoGroup says that no control group can be made here.
var errNoGroup = errors.New("no control group with a memory limit can be made here")

// A group is a control group whose memory is limited.
type group struct {
	dir  string
	peak string // file
	oom  string // file with a line oom_kill N
	sock string // file with the bytes of socket buffers, or with a line sock N
}

// newGroup makes one, of version 2 or 1 (cgroups(7)).
func newGroup(limit int64) (*group, error) {
	name := fmt.Sprintf("warmwire-bench-%d", os.Getpid())
	for _, v := range []struct{ root, limit, peak, oom, sock string }{
		{"/sys/fs/cgroup", "memory.max", "memory.peak", "memory.events", "memory.stat"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "memory.kmem.tcp.max_usage_in_bytes"},
	} {
		dir := filepath.Join(v.root, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if err := put(filepath.Join(dir, v.limit), limit); err != nil {
			_ = os.Remove(dir)
			continue
		}
		_ = put(filepath.Join(dir, "memory.kmem.tcp.limit_in_bytes"), 1<<40) // version 1 counts those once there is a limit
		return &group{dir, filepath.Join(dir, v.peak), filepath.Join(dir, v.oom), filepath.Join(dir, v.sock)}, nil
	}
	return nil, errNoGroup
}

// put writes a number to a file that is there where the controller is.
func put(file string, n int64) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(n, 10))
	return errors.Join(err, f.Close())
}

// close removes the group once its processes have gone.
func (g *group) close() {
	for range 50 {
		if os.Remove(g.dir) == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// within starts p inside the group.
func (g *group) within(start starter) starter {
	return func(r *rack, ctx context.Context, p *peer, address string) error {
		inside := *r
		inside.group = filepath.Join(g.dir, "cgroup.procs")
		return start(&inside, ctx, p, address)
	}
}

func (g *group) read(into *contained) error {
	text, err := os.ReadFile(g.peak)
	if err != nil {
		return err
	}
	if into.peak, err = strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err != nil {
		return err
	}
	if text, err = os.ReadFile(g.oom); err != nil {
		return err
	}
	if sock, err := os.ReadFile(g.sock); err == nil {
		number := string(sock)
		if _, rest, ok := strings.Cut("\n"+number, "\nsock "); ok {
			number, _, _ = strings.Cut(rest, "\n")
		}
		into.sock, _ = strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			into.kills, err = strconv.Atoi(n)
		}
	}
	return err
}

// smallContainer runs slow clients through proxies with little memory; nil where no
// control group can be made.
func (b *bench) smallContainer(ctx context.Context) ([]contained, error) {
	var out []contained
	for _, sp := range []spec{
		{name: "warmwire", kind: reverse, how: "its defaults", start: startBounded("auto", "h2", "", "")},
		{name: "warmwire-h1", kind: reverse, how: "its defaults", start: startBounded("auto", "http/1.1", "", "")},
		{name: "stock", kind: reverse, how: "HTTP/2 upstream", start: startStock(false)},
		{name: "nginx", kind: reverse, debian: "nginx", how: "`proxy_buffering off`", start: startNginx},
	} {
		one, err := b.contain(ctx, sp)
		if errors.Is(err, errNoGroup) {
			fmt.Fprintf(os.Stderr, "bench: the small container is left out: %v\n", err)
			return nil, nil
		}
		if err = b.absent(sp, err); err != nil {
			return nil, fmt.Errorf("%s in a small container: %w", sp.name, err)
		}
		if one != nil {
			out = append(out, *one)
		}
	}
	return out, nil
}

func (b *bench) contain(ctx context.Context, sp spec) (*contained, error) {
	if err := b.nothingOpen(ctx); err != nil {
		return nil, err
	}
	g, err := newGroup(containerBytes)
	if err != nil {
		return nil, err
	}
	defer g.close()
	out := &contained{spec: sp}
	sp.start = g.within(sp.start)
	err = b.fresh(ctx, sp, func(p *peer) error {
		c := p.client(b.ca).narrowed()
		defer c.close()
		out.whole = c.slowThenAll(ctx, containerReaders, 5*b.slowFor)
		out.rss, _ = rss(p.cmd.Process.Pid) // it may be gone
		return g.read(out)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// slowThenAll reads n answers at 20 kB/s for the given time, then what is left as
// fast as it comes, and returns how many were right.
func (c *client) slowThenAll(ctx context.Context, n int, length time.Duration) int {
	var whole atomic.Int64
	var readers errgroup.Group
	want := bigSum(containerAnswer)
	for range n {
		readers.Go(func() error {
			resp, err := c.get(ctx, fmt.Sprintf("/v1/big?bytes=%d", containerAnswer))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			h := sha256.New()
			tick := time.NewTicker(readEvery)
			defer tick.Stop()
			for stop := time.Now().Add(length); time.Now().Before(stop); <-tick.C {
				if _, err := io.CopyN(h, resp.Body, readPiece); err != nil {
					return err
				}
			}
			if _, err := io.Copy(h, resp.Body); err == nil && sum(h) == want {
				whole.Add(1)
			}
			return err
		})
	}
	_ = readers.Wait() // the count says it
	return int(whole.Load())
}
