// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

var (
	// ErrMoved says that a connection is on the endpoint's present socket already.
	ErrMoved = errors.New("h3: the connection is on the newest socket already")
	// ErrNoMigration says that the server allows none (RFC 9000 §18.2,
	// disable_active_migration): the connection is to be replaced.
	ErrNoMigration = errors.New("h3: the upstream allows no migration")
)

// Migrate moves the connection to its endpoint's present socket: see
// [Endpoint.Rebind]. The new path is probed until ctx ends (RFC 9000 §9), and
// everything goes on over the old one meanwhile; if the server does not answer, or
// allows no migration, the connection stays where it is.
func (c *Conn) Migrate(ctx context.Context) error {
	if err := c.waitSure(ctx); err != nil { // RFC 9000 §9: not before the handshake is confirmed
		return err
	}
	c.migrating.Lock()
	defer c.migrating.Unlock()
	if err := c.ended(); err != nil { // one that takes no more requests moves with those it has
		return err
	}
	s, err := c.sockets.e.use(c.family)
	if err != nil {
		return err
	}
	if s == c.on {
		c.sockets.e.done(s)
		return ErrMoved
	}
	// Held from here on, moved or not: the library registers the connection with it
	// at the first probe, and would end it with the socket.
	if !c.sockets.add(s) {
		return c.Err()
	}
	path, err := c.qc.AddPath(s.tr)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoMigration, err)
	}
	if err = path.Probe(ctx); err == nil {
		err = path.Switch()
	}
	if err != nil {
		_ = path.Close()
		return fmt.Errorf("h3: move the connection: %w", err)
	}
	c.on = s
	return nil
}

// Move is [Endpoint.Rebind], and [Conn.Migrate] of all connections, all at once.
// Those that did not move within ctx, as the error says, are where they were.
func (e *Endpoint) Move(ctx context.Context) error {
	if err := e.Rebind(); err != nil {
		return err
	}
	e.mu.Lock()
	conns := slices.Collect(maps.Keys(e.conns))
	e.mu.Unlock()
	errs := make([]error, len(conns))
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { errs[i] = c.Migrate(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
