// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"bytes"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/transport"
)

// TestSpareConnection: nginx answers its PING and closes it in order when it is idle;
// one that is cut says so; who does not speak HTTP/2 has none.
func TestSpareConnection(t *testing.T) {
	program := testenv.Need(t, "nginx")
	s := newSite(t, "127.0.0.1:1")
	command := fronts[0].command(t, s)
	conf := s.dir + "/nginx.conf"
	b, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "nginx.conf", string(bytes.Replace(b, []byte("http {"), []byte("http { keepalive_timeout 1s; client_header_timeout 1s; "), 1)))
	port, _ := strconv.Atoi(s.port)
	stop := testenv.Run(t, exec.Command(program, command...), port)
	u, err := url.Parse("https://127.0.0.1:" + s.port)
	if err != nil {
		t.Fatal(err)
	}
	tr := newTransport(t, transport.Config{Trust: trusting(t, s.roots)})
	t.Cleanup(tr.Close)
	open := func() *transport.Spare {
		t.Helper()
		spare, err := tr.Spare(t.Context(), u)
		if err != nil {
			t.Fatal(err)
		}
		if took, err := spare.Ping(t.Context()); err != nil || took <= 0 || time.Since(spare.Heard()) > patience {
			t.Fatalf("PING took %v, %v", took, err)
		}
		return spare
	}
	gone := func(spare *transport.Spare) {
		t.Helper()
		select {
		case <-spare.Gone():
		case <-time.After(patience):
			t.Fatal("it does not end")
		}
	}
	idle := open()
	if n := len(tr.State()["https://127.0.0.1:"+s.port].Conns); n != 0 {
		t.Errorf("the pool has %d connections", n)
	}
	gone(idle)
	if !idle.InOrder() {
		t.Error("an idle connection that nginx has closed was not closed in order")
	}
	idle.Close()
	open().Close()
	cut := open()
	if err := cut.NetConn().SetReadDeadline(time.Now()); err != nil { // what its reader finds then is no end
		t.Fatal(err)
	}
	gone(cut)
	cut.Close()
	plain := newTransport(t, transport.Config{Trust: trusting(t, s.roots), Protocols: []string{"http/1.1"}})
	t.Cleanup(plain.Close)
	if _, err := plain.Spare(t.Context(), u); !errors.Is(err, transport.ErrNoSpare) {
		t.Errorf("over HTTP/1.1: %v", err)
	}
	stop()
	if _, err := tr.Spare(t.Context(), u); err == nil || errors.Is(err, transport.ErrNoSpare) {
		t.Errorf("from a server that is gone: %v", err)
	}
}
