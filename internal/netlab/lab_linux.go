// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// answerTime is how long the forwarder may take to answer a request. It has
	// real time priority and answers within a millisecond; a machine that stands
	// still for this long measures nothing.
	answerTime = 10 * time.Second
	// endTime is how long it may take to end.
	endTime = 2 * time.Second
)

// hint is the likely reason why there is no forwarder where one should be.
const hint = " (does main or TestMain call netlab.Main first?)"

// Available is nil where a lab can run, and otherwise says what is missing.
func Available() error {
	if id := os.Geteuid(); id != 0 {
		return fmt.Errorf("netlab: needs root, to make network namespaces (runs as user %d)", id)
	}
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("netlab: needs %s: %w", tunPath, err)
	}
	_ = unix.Close(fd)
	return nil
}

// A Lab is a running network of two hosts. All methods are safe for concurrent
// use.
type Lab struct {
	Client, Server *Host

	control *net.UnixConn
	ask     sync.Mutex // held from a request to its reply

	process *os.Process   // of the forwarder
	ended   chan struct{} // closed once the forwarder has ended
	exit    error         // why; read it after ended is closed
	once    sync.Once     // of Close

	moving sync.Mutex // held while addresses change; before ask and mu
	mu     sync.Mutex // guards the fields below and the hosts' addresses
	place  int        // of the client
	natAt  int        // of the NAT
}

// New makes the hosts and starts the forwarder. The caller must Close the lab;
// should the process be killed first, everything goes with it. ctx bounds the
// start only.
func New(ctx context.Context, cfg Config) (*Lab, error) {
	if err := errors.Join(cfg.Validate(), Available(), ctx.Err()); err != nil {
		return nil, err
	}
	if os.Args[0] == forwarderName || os.Args[0] == execName {
		return nil, errors.New("netlab: this is a child of a lab: call netlab.Main first in main or TestMain")
	}
	l := &Lab{ended: make(chan struct{})}
	var err error
	v4, v6 := clientAddrs(0)
	if l.Client, err = newHost(l, v4, v6); err != nil {
		return nil, fmt.Errorf("netlab: make the client: %w", err)
	}
	l.Server, err = newHost(l, netip.AddrFrom4([4]byte{198, 51, 100, 1}), netip.MustParseAddr("2001:db8:3::1"))
	if err != nil {
		l.Client.close()
		return nil, fmt.Errorf("netlab: make the server: %w", err)
	}
	if err := l.start(); err != nil {
		l.Client.close()
		l.Server.close()
		return nil, fmt.Errorf("netlab: start the forwarder: %w", err)
	}
	_, err = l.request(request{
		Start: &startRequest{Seed: cfg.Seed, Addrs: l.addrs()},
		Links: &[2]Link{cfg.Up, cfg.Down}, NAT: &cfg.NAT,
	})
	if err := errors.Join(err, ctx.Err()); err != nil {
		_ = l.Close() // the first error is the one to report
		return nil, err
	}
	return l, nil
}

// addrs is where client and NAT are now.
func (l *Lab) addrs() hostAddrs {
	l.mu.Lock()
	defer l.mu.Unlock()
	var a hostAddrs
	a.Client4, a.Client6 = clientAddrs(l.place)
	a.NAT4, a.NAT6 = natAddrs(l.natAt)
	return a
}

func (l *Lab) start() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make the control socket: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer func() { _ = theirs.Close() }()
	ours := os.NewFile(uintptr(pair[0]), "control")
	conn, err := net.FileConn(ours)
	_ = ours.Close() // conn has a copy
	if err != nil {
		return fmt.Errorf("use the control socket: %w", err)
	}
	l.control = conn.(*net.UnixConn)
	started := make(chan error)
	go l.keep(theirs, started)
	if err := <-started; err != nil {
		_ = l.control.Close()
		return err
	}
	return nil
}

// keep starts the forwarder and waits for its end, all on one thread, because
// the kernel kills the forwarder when the thread that started it ends.
func (l *Lab) keep(control *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(l.ended)
	var words bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{forwarderName}
	// Nothing of the surroundings leaks into it. A race detector would keep it a
	// second after its end, in case that something is still to report.
	cmd.Env = []string{"GORACE=atexit_sleep_ms=0"}
	cmd.Stderr = &words
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true} // not the terminal's ^C
	files := []*os.File{control}
	for _, fd := range []int{l.Client.tun, l.Server.tun} {
		// A copy, because a File closes what it was made of.
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			started <- err
			return
		}
		f := os.NewFile(uintptr(dup), "tun")
		defer func() { _ = f.Close() }()
		files = append(files, f)
	}
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	l.process = cmd.Process
	started <- nil
	if err := cmd.Wait(); err != nil {
		l.exit = fmt.Errorf("%w: %s", err, bytes.TrimSpace(words.Bytes()))
	}
}

// request asks the forwarder and waits for its answer.
func (l *Lab) request(r request) (Stats, error) {
	l.ask.Lock()
	defer l.ask.Unlock()
	out, err := json.Marshal(r)
	if err != nil {
		return Stats{}, fmt.Errorf("netlab: print a request: %w", err)
	}
	if len(out) > maxMessage {
		return Stats{}, fmt.Errorf("netlab: %d bytes of settings are too many: use fewer schedules", len(out))
	}
	_ = l.control.SetDeadline(time.Now().Add(answerTime)) // an error comes again with the write
	in := make([]byte, maxMessage)
	if _, err := l.control.Write(out); err != nil {
		return Stats{}, l.gone(err)
	}
	n, err := l.control.Read(in)
	if err != nil || n == 0 {
		return Stats{}, l.gone(err)
	}
	var rep reply
	if err := json.Unmarshal(in[:n], &rep); err != nil {
		return Stats{}, fmt.Errorf("netlab: read the forwarder's answer: %w%s", err, hint)
	}
	if rep.Err != "" {
		return Stats{}, fmt.Errorf("netlab: %s", rep.Err)
	}
	return rep.Stats, nil
}

// gone says what became of the forwarder.
func (l *Lab) gone(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("netlab: the lab is closed: %w", err)
	}
	select {
	case <-l.ended:
		return fmt.Errorf("netlab: the forwarder has ended: %w%s", errors.Join(l.exit, err), hint)
	default:
		return fmt.Errorf("netlab: ask the forwarder: %w%s", err, hint)
	}
}

// Set replaces what the two directions do, both at once, and starts their
// schedules anew. Packets on their way keep their times.
func (l *Lab) Set(up, down Link) error {
	if err := validateLinks(up, down); err != nil {
		return err
	}
	_, err := l.request(request{Links: &[2]Link{up, down}})
	return err
}

// SetNAT replaces the NAT. The flows it knows stay known, unless it is off.
func (l *Lab) SetNAT(n NAT) error {
	if err := (Config{NAT: n}).validateNAT(); err != nil {
		return err
	}
	_, err := l.request(request{NAT: &n})
	return err
}

// Outage loses what enters the network from now on, both ways, for d.
func (l *Lab) Outage(d time.Duration) error {
	if err := span(d); err != nil {
		return err
	}
	_, err := l.request(request{Outage: d})
	return err
}

// Hold keeps everything that is on its way, or enters, for d, both ways, and
// then lets it go: a delay spike, nothing is lost.
func (l *Lab) Hold(d time.Duration) error {
	if err := span(d); err != nil {
		return err
	}
	_, err := l.request(request{Hold: d})
	return err
}

func span(d time.Duration) error {
	if d <= 0 || d > maxDelay {
		return fmt.Errorf("netlab: %v is not between 0 and %v", d, maxDelay)
	}
	return nil
}

// ForgetFlows empties the NAT's table, as if it had been restarted.
func (l *Lab) ForgetFlows() error {
	_, err := l.request(request{Forget: true})
	return err
}

// ChangeClientAddress moves the client to another network, as from Wi-Fi to
// cellular: its addresses are gone, it has new ones and a new route, and it is
// behind another NAT, if it is behind one.
func (l *Lab) ChangeClientAddress() error {
	l.moving.Lock()
	defer l.moving.Unlock()
	l.mu.Lock()
	place := l.place + 1
	l.mu.Unlock()
	v4, v6 := clientAddrs(place)
	if err := l.Client.readdress(v4, v6); err != nil {
		return fmt.Errorf("netlab: change the client's address: %w", err)
	}
	l.mu.Lock()
	l.place = place
	l.natAt++
	l.Client.v4, l.Client.v6 = v4, v6
	l.mu.Unlock()
	return l.move()
}

// ChangeNATAddress gives the NAT another address on the outside, as a carrier
// does every night: the client sees nothing of it, and all flows are gone.
func (l *Lab) ChangeNATAddress() error {
	l.moving.Lock()
	defer l.moving.Unlock()
	l.mu.Lock()
	l.natAt++
	l.mu.Unlock()
	return l.move()
}

func (l *Lab) move() error {
	a := l.addrs()
	_, err := l.request(request{Addrs: &a})
	return err
}

// NATAddrs is where the client seems to be, seen from the server, while a NAT is on.
func (l *Lab) NATAddrs() (v4, v6 netip.Addr) {
	a := l.addrs()
	return a.NAT4, a.NAT6
}

// Stats returns what has happened so far.
func (l *Lab) Stats() (Stats, error) { return l.request(request{}) }

// Close stops the forwarder and lets go of the hosts, which are gone with their
// last socket and process. It returns an error if the forwarder did not end well.
func (l *Lab) Close() error {
	l.once.Do(func() {
		_ = l.control.Close() // which ends the forwarder
		kill := time.AfterFunc(endTime, func() { _ = l.process.Kill() })
		<-l.ended
		kill.Stop()
		l.Client.close()
		l.Server.close()
	})
	if l.exit != nil {
		return fmt.Errorf("netlab: the forwarder: %w", l.exit)
	}
	return nil
}
