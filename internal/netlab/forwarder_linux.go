// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// The names under which the program starts itself again; no person types them.
const (
	forwarderName = "netlab-forwarder"
	execName      = "netlab-exec"
)

// What the forwarder finds open.
const (
	controlFD = 3 + iota
	clientFD
	serverFD
)

const (
	maxMessage = 64 << 10 // 64 KiB, of the control socket
	// batch is how many packets are read before those that are due leave.
	batch = 32
	// priority is the lowest of real time: above all of ordinary scheduling.
	priority = 1
	// forwarderHeap is when the forwarder collects garbage: what it holds at
	// most, and room for the little it makes.
	forwarderHeap = maxHeldBytes + 64<<20
)

// A request changes what it names, all at once, and is answered by a reply.
type request struct {
	Start  *startRequest `json:",omitempty"` // the first one
	Links  *[2]Link      `json:",omitempty"`
	NAT    *NAT          `json:",omitempty"`
	Addrs  *hostAddrs    `json:",omitempty"`
	Outage time.Duration `json:",omitempty"`
	Hold   time.Duration `json:",omitempty"`
	Forget bool          `json:",omitempty"`
}

type startRequest struct {
	Seed  uint64
	Addrs hostAddrs
}

type reply struct {
	Err   string `json:",omitempty"`
	Stats Stats
}

// Main does the work of a child process of the lab if this process is one, and
// says whether it was: then the program must return at once. A program that uses
// the lab calls it first thing in main or TestMain:
//
//	if netlab.Main() {
//		return
//	}
//
// because the forwarder is the program itself, started again: it needs a
// scheduler of its own to keep time.
func Main() bool {
	if len(os.Args) == 0 {
		return false
	}
	var err error
	switch os.Args[0] {
	case forwarderName:
		err = forward()
	case execName:
		err = execInside(os.Args[1:])
	default:
		return false
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "netlab: %v\n", err)
		unix.Exit(exitFailed)
	}
	return true
}

// exitFailed is what a shell exits with for a command that it cannot start.
const exitFailed = 127

// A forwarder moves packets between two devices. All of it belongs to one
// thread.
type forwarder struct {
	engine  *engine
	start   time.Time
	epoll   int
	timer   int
	armed   time.Duration // when the timer fires; negative: it does not
	scratch []byte
}

// forward runs until the control socket ends, which it does when the process
// that made it ends, however it does.
func forward() error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(forwarderHeap)
	// Without the right to real time the lab works, later under load.
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}
	_ = unix.SchedSetAttr(0, &attr, 0)

	f := &forwarder{start: time.Now(), armed: -1, scratch: make([]byte, maxMessage)}
	var err error
	if f.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("make an epoll: %w", err)
	}
	if f.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("make a timer: %w", err)
	}
	for _, fd := range []int{controlFD, clientFD, serverFD, f.timer} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			return fmt.Errorf("watch descriptor %d: %w", fd, err)
		}
	}
	return f.run()
}

func (f *forwarder) now() time.Duration { return time.Since(f.start) }

func (f *forwarder) run() error {
	events := make([]unix.EpollEvent, 4)
	for {
		if err := f.arm(); err != nil {
			return err
		}
		n, err := unix.EpollWait(f.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for packets: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			switch e.Fd {
			case controlFD:
				ended, err := f.control()
				if ended || err != nil {
					return err
				}
			case clientFD:
				f.read(clientFD, Up)
			case serverFD:
				f.read(serverFD, Down)
			default:
				_, _ = unix.Read(f.timer, f.scratch[:8]) // it is due, or was moved meanwhile
				f.armed = -1
			}
		}
		if f.engine != nil {
			f.engine.release(f.now(), f.write)
		}
	}
}

// arm sets the timer for the next packet that leaves.
func (f *forwarder) arm() error {
	if f.engine == nil {
		return nil
	}
	at, ok := f.engine.next()
	if !ok || at == f.armed {
		return nil // a timer that fires for nothing does no harm
	}
	wait := max(at-f.now(), 1) // 0 would stop it
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wait))}
	if err := unix.TimerfdSettime(f.timer, 0, &spec, nil); err != nil {
		return fmt.Errorf("set the timer: %w", err)
	}
	f.armed = at
	return nil
}

func (f *forwarder) read(fd int, dir Direction) {
	for range batch {
		n, err := unix.Read(fd, f.scratch)
		if err != nil || n <= 0 {
			return // nothing there, or the device is down
		}
		if f.engine != nil {
			f.engine.input(f.now(), dir, f.scratch[:n])
		}
	}
}

func (f *forwarder) write(dir Direction, b []byte) bool {
	fd := serverFD
	if dir == Down {
		fd = clientFD
	}
	_, err := unix.Write(fd, b)
	return err == nil
}

// control reads one request and answers it. It is true when the other side has
// gone.
func (f *forwarder) control() (bool, error) {
	n, err := unix.Read(controlFD, f.scratch)
	switch {
	case err == unix.EINTR || err == unix.EAGAIN:
		return false, nil
	case err != nil && !errors.Is(err, unix.ECONNRESET):
		return false, fmt.Errorf("read a request: %w", err)
	case err != nil || n == 0:
		return true, nil
	}
	var req request
	var rep reply
	if err := json.Unmarshal(f.scratch[:n], &req); err != nil {
		rep.Err = err.Error()
	} else if err := f.apply(&req); err != nil {
		rep.Err = err.Error()
	}
	if f.engine != nil {
		rep.Stats = f.engine.snapshot(f.now())
	}
	out, err := json.Marshal(rep)
	if err != nil {
		return false, fmt.Errorf("print a reply: %w", err)
	}
	if _, err := unix.Write(controlFD, out); err != nil {
		return true, nil // gone meanwhile
	}
	return false, nil
}

func (f *forwarder) apply(r *request) error {
	if r.Start != nil {
		f.engine = newEngine(r.Start.Seed, r.Start.Addrs)
	}
	e, now := f.engine, f.now()
	if e == nil {
		return errors.New("the first request must be a start")
	}
	if r.Addrs != nil {
		e.setAddrs(*r.Addrs)
	}
	if r.Links != nil {
		e.setLinks(now, r.Links[Up], r.Links[Down])
	}
	if r.NAT != nil {
		e.setNAT(*r.NAT)
	}
	if r.Outage > 0 {
		e.outage(now, r.Outage)
	}
	if r.Hold > 0 {
		e.hold(now, r.Hold)
	}
	if r.Forget {
		e.forget()
	}
	return nil
}
