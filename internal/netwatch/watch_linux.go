// SPDX-License-Identifier: Apache-2.0

package netwatch

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// subscribe asks the kernel for what is there and what changes.
func (w *Watcher) subscribe() error {
	addrs, routes := make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64)
	ignore := func(error) {} // the channel is closed, which is seen
	stop := make(chan struct{})
	if err := netlink.AddrSubscribeWithOptions(addrs, stop, netlink.AddrSubscribeOptions{ListExisting: true, ErrorCallback: ignore}); err != nil {
		close(stop)
		return fmt.Errorf("watch the addresses of this machine: %w", err)
	}
	if err := netlink.RouteSubscribeWithOptions(routes, stop, netlink.RouteSubscribeOptions{ListExisting: true, ErrorCallback: ignore}); err != nil {
		close(stop)
		go drain(addrs)
		return fmt.Errorf("watch the routes of this machine: %w", err)
	}
	w.events = make(chan event)
	go w.translate(addrs, routes, stop)
	return nil
}

// translate makes events of what matters, until Run has ended or one of the
// subscriptions has.
func (w *Watcher) translate(addrs <-chan netlink.AddrUpdate, routes <-chan netlink.RouteUpdate, stop chan<- struct{}) {
	events := w.events // Run forgets it
	defer close(events)
	defer func() {
		close(stop)
		drain(addrs)
		drain(routes)
	}()
	for {
		var e event
		select {
		case <-w.done:
			return
		case u, ok := <-addrs:
			if !ok {
				return
			}
			if ip := u.LinkAddress.IP; ip.IsLoopback() || ip.IsLinkLocalUnicast() {
				continue
			}
			e = event{fmt.Sprintf("address %v %d", &u.LinkAddress, u.LinkIndex), u.NewAddr}
		case u, ok := <-routes:
			if !ok {
				return
			}
			if u.Dst != nil && !u.Dst.IP.IsUnspecified() || u.Table != unix.RT_TABLE_MAIN {
				continue
			}
			e = event{fmt.Sprintf("route %v %d %d", u.Gw, u.LinkIndex, u.Family), u.Type == unix.RTM_NEWROUTE}
		}
		select {
		case events <- e:
		case <-w.done:
			return
		}
	}
}

// drain takes what still comes until the library closes c.
func drain[T any](c <-chan T) {
	for range c {
	}
}
