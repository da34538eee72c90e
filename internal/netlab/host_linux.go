// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	tunPath    = "/dev/net/tun"
	deviceName = "path0"
	// deviceQueue is how many packets the kernel keeps for a forwarder that is late.
	deviceQueue = 4096
)

// A Host is one of the two ends: a network namespace with one device, whose
// other side is the lab. Sockets made in it can be used from anywhere. All
// methods are safe for concurrent use; once the lab is closed they fail.
type Host struct {
	tun int // the device's other side

	mu sync.Mutex // guards ns: who still dials when the lab closes must not enter what has its number next
	ns netns.NsHandle

	lab    *Lab // guards the addresses
	v4, v6 netip.Addr
}

// newHost makes a namespace and its device. Nothing of it has a name outside, so
// that it is gone when the last process that holds it is.
func newHost(lab *Lab, v4, v6 netip.Addr) (*Host, error) {
	h := &Host{ns: -1, tun: -1, lab: lab, v4: v4, v6: v6}
	err := inNamespace(netns.New, func() error {
		var err error
		if h.ns, err = netns.Get(); err != nil {
			return fmt.Errorf("hold the namespace: %w", err)
		}
		if h.tun, err = openTUN(); err != nil {
			return err
		}
		return h.configure()
	})
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *Host) close() {
	if h.tun >= 0 {
		_ = unix.Close(h.tun) // and with its last descriptor the device goes
		h.tun = -1
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ns.IsOpen() {
		_ = h.ns.Close()
	}
}

// enter puts this thread into the host's namespace.
func (h *Host) enter() (netns.NsHandle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ns.IsOpen() {
		return netns.None(), errors.New("the lab is closed")
	}
	return netns.None(), netns.Set(h.ns)
}

// inNamespace runs f on this thread in the namespace that enter puts it into,
// and brings the thread back, also when f panics or ends its goroutine.
func inNamespace(enter func() (netns.NsHandle, error), f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find the thread's namespace: %w", err)
	}
	defer func() {
		// A thread that cannot come back must not serve other goroutines, and
		// the caller's goroutine has to run somewhere.
		if err := netns.Set(home); err != nil {
			panic(fmt.Sprintf("netlab: internal error: cannot leave the namespace: %v", err))
		}
		_ = home.Close()
		runtime.UnlockOSThread()
	}()
	entered, err := enter()
	if err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	if entered.IsOpen() {
		defer func() { _ = entered.Close() }()
	}
	return f()
}

func openTUN() (int, error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", tunPath, err)
	}
	request, err := unix.NewIfreq(deviceName)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make a TUN device: %w", err)
	}
	return fd, nil
}

// sysctls make a host quiet and forgetful: nothing but the hosts' own traffic on
// the path, and no memory of one connection in the next.
var sysctls = [...][2]string{
	{"net/ipv6/conf/" + deviceName + "/addr_gen_mode", "1"}, // no link-local address
	{"net/ipv6/conf/" + deviceName + "/accept_ra", "0"},
	{"net/ipv6/conf/" + deviceName + "/router_solicitations", "0"},
	{"net/ipv4/tcp_no_metrics_save", "1"},
}

// configure runs inside the namespace.
func (h *Host) configure() error {
	for _, s := range sysctls {
		if err := os.WriteFile("/proc/sys/"+s[0], []byte(s[1]), 0); err != nil {
			return fmt.Errorf("set up the host: %w", err)
		}
	}
	nl, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	link, err := nl.LinkByName(deviceName)
	if err != nil {
		return fmt.Errorf("find the device: %w", err)
	}
	return errors.Join(
		nl.LinkSetUp(lo),
		nl.LinkSetMTU(link, deviceMTU),
		nl.LinkSetTxQLen(link, deviceQueue),
		nl.LinkSetUp(link),
		addAddresses(nl, link, h.v4, h.v6),
	)
}

// addAddresses gives the device its addresses, and routes everything over it.
func addAddresses(nl *netlink.Handle, link netlink.Link, addrs ...netip.Addr) error {
	for _, a := range addrs {
		if err := nl.AddrAdd(link, deviceAddr(a)); err != nil {
			return fmt.Errorf("add address %v: %w", a, err)
		}
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if a.Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(all), Src: a.AsSlice()}
		if err := nl.RouteReplace(route); err != nil {
			return fmt.Errorf("add the route of %v: %w", a, err)
		}
	}
	return nil
}

func deviceAddr(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD // usable at once
	}
	return addr
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// readdress gives the host new addresses instead of the old ones.
func (h *Host) readdress(v4, v6 netip.Addr) error {
	return h.Do(func() error {
		nl, err := netlink.NewHandle()
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer nl.Close()
		link, err := nl.LinkByName(deviceName)
		if err != nil {
			return fmt.Errorf("find the device: %w", err)
		}
		for _, old := range []netip.Addr{h.v4, h.v6} {
			if err := nl.AddrDel(link, deviceAddr(old)); err != nil {
				return fmt.Errorf("remove address %v: %w", old, err)
			}
		}
		return addAddresses(nl, link, v4, v6)
	})
}

// Addr4 is the host's present IPv4 address.
func (h *Host) Addr4() netip.Addr {
	h.lab.mu.Lock()
	defer h.lab.mu.Unlock()
	return h.v4
}

// Addr6 is the host's present IPv6 address.
func (h *Host) Addr6() netip.Addr {
	h.lab.mu.Lock()
	defer h.lab.mu.Unlock()
	return h.v6
}

// Do runs f in the host's namespace. What f starts with the go statement runs
// outside of it; the sockets that f makes itself stay in it.
func (h *Host) Do(f func() error) error {
	return inNamespace(h.enter, f)
}

// congestionControl is the one that Linux itself has as its default. A machine
// that has another, which keeps queues short or minds no loss, must not make the
// network look better. (A namespace cannot have this one as its own default where
// the machine restricts it, so it is set on the sockets.)
const congestionControl = "cubic"

// control sets a TCP socket of the lab up.
func control(network, _ string, c syscall.RawConn) error {
	if network[:3] != "tcp" {
		return nil
	}
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestionControl)
	}); cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("use %s for congestion control: %w", congestionControl, err)
	}
	return nil
}

// Dial connects from the host. addr is an IP address and port: there is no name
// service between the two hosts.
func (h *Host) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, fmt.Errorf("netlab: dial %q: use an IP address and port: %w", addr, err)
	}
	var conn net.Conn
	err := h.Do(func() error {
		var err error
		conn, err = (&net.Dialer{Control: control}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Listen listens for TCP on the host. addr is an IP address, or nothing for all
// of them, and a port.
func (h *Host) Listen(network, addr string) (net.Listener, error) {
	var l net.Listener
	err := h.Do(func() error {
		if err := literal(addr); err != nil {
			return err
		}
		lc := net.ListenConfig{Control: control}
		lc.SetMultipathTCP(false) // plain TCP sockets, as the client's are
		var err error
		l, err = lc.Listen(context.Background(), network, addr)
		return err
	})
	return l, err
}

// ListenPacket opens a UDP socket on the host. For addr see Listen.
func (h *Host) ListenPacket(network, addr string) (net.PacketConn, error) {
	var c net.PacketConn
	err := h.Do(func() error {
		if err := literal(addr); err != nil {
			return err
		}
		var err error
		c, err = net.ListenPacket(network, addr)
		return err
	})
	return c, err
}

// literal refuses names, which would be looked up on another thread, outside.
func literal(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("netlab: listen: %w", err)
	}
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("netlab: listen on %q: use an IP address: %w", addr, err)
	}
	return nil
}

// Command returns a command that will run in the host's namespace. The program
// must call Main. The process is killed when the thread that started it ends,
// and so with this process at the latest; Close of the lab does not end it.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	path, err := exec.LookPath(name)
	if err != nil {
		cmd.Err = err
		path = name
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	namespace := "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(h.ns))
	cmd.Args = append([]string{execName, namespace, path, name}, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// execInside becomes another program in a namespace: namespace, path and the
// arguments from the name on.
func execInside(args []string) error {
	if len(args) < 3 {
		return errors.New("too few arguments")
	}
	runtime.LockOSThread()
	ns, err := netns.GetFromPath(args[0])
	if err != nil {
		return fmt.Errorf("open the namespace: %w", err)
	}
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("enter the namespace: %w", err)
	}
	_ = ns.Close() // the process is in it now
	return fmt.Errorf("start %s: %w", args[1], unix.Exec(args[1], args[2:], new(exec.Cmd).Environ()))
}
