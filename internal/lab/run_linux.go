// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/warmwire/warmwire/internal/mockapi"
	"github.com/warmwire/warmwire/internal/netlab"
)

// A Run runs one program on the client host of a lab. On the server host is the
// built-in model API, and beside the program a Warmwire that knows it as "api".
type Run struct {
	Network  netlab.Config
	Warmwire string   // path of the program
	Command  []string // {url}, {tls}, {ca} and {through} in it are replaced, see Places

	AddressEvery time.Duration // the client moves to another network this often; 0 means never

	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Places says what is put in place of what in the command, and into which
// variables of its environment.
func Places() [][3]string {
	return [][3]string{
		{"{url}", "WARMWIRE_LAB_URL", "the model API, plain"},
		{"{tls}", "WARMWIRE_LAB_TLS", "the model API over TLS"},
		{"{ca}", "WARMWIRE_LAB_CA", "the file of the authority that signed its certificate"},
		{"{through}", "WARMWIRE_LAB_THROUGH", "the base URL of the model API through Warmwire"},
	}
}

// Do runs it and returns the program's error, an *exec.ExitError if it ran.
// When ctx ends, the program gets SIGTERM and, if it stays, SIGKILL later.
func (r Run) Do(ctx context.Context) (err error) {
	if len(r.Command) == 0 {
		return errors.New("lab: no command")
	}
	if _, err := exec.LookPath(r.Command[0]); err != nil {
		return err
	}
	l, err := netlab.New(ctx, r.Network)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	api, err := newAPI(l.Server)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	running.Go(func() {
		if aerr := api.Run(ctx); aerr != nil {
			cancel(aerr)
		}
	})
	addr := l.Server.Addr4().String()
	values := map[string]string{
		"{url}":     "http://" + addr + ":" + portOf(api.URL()),
		"{tls}":     "https://" + addr + ":" + portOf(api.TLSURL()),
		"{through}": "http://" + warmwireAddr + "/api",
	}
	warmwire, err := startWarmwire(ctx, l.Client, r.Warmwire, "none", []Upstream{{Name: "api", URL: values["{tls}"], CA: api.CAPEM()}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, warmwire.stop()) }()
	values["{ca}"] = filepath.Join(warmwire.dir, "api.pem")
	if r.AddressEvery > 0 {
		running.Go(func() {
			for sleep(ctx, r.AddressEvery) == nil {
				if merr := l.ChangeClientAddress(); merr != nil {
					cancel(merr)
				}
			}
		})
	}
	return r.child(ctx, l.Client, values)
}

// newAPI opens the model API's addresses on a host.
func newAPI(host *netlab.Host) (*mockapi.Server, error) {
	plain, err := host.Listen("tcp", ":0")
	if err != nil {
		return nil, err
	}
	secure, err := host.Listen("tcp", ":0")
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	api, err := mockapi.New(mockapi.Config{Listener: plain, TLSListener: secure, Names: []string{host.Addr4().String(), host.Addr6().String()}})
	if err == nil {
		err = api.Listen()
	}
	if err != nil {
		return nil, errors.Join(err, plain.Close(), secure.Close())
	}
	return api, nil
}

func portOf(url string) string { return url[strings.LastIndexByte(url, ':')+1:] }

// child runs the command with its places filled in.
func (r Run) child(ctx context.Context, host *netlab.Host, values map[string]string) error {
	var pairs, environment []string
	for _, p := range Places() {
		pairs = append(pairs, p[0], values[p[0]])
		environment = append(environment, p[1]+"="+values[p[0]])
	}
	fill := strings.NewReplacer(pairs...)
	args := make([]string, len(r.Command))
	for i, a := range r.Command {
		args[i] = fill.Replace(a)
	}
	cmd := host.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.Stdin, r.Stdout, r.Stderr
	cmd.Env = append(os.Environ(), environment...)
	ended, err := spawn(cmd)
	if err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	limit := time.AfterFunc(startLimit, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	err = <-ended
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return errors.Join(cause, err)
	}
	return err
}

// spawn starts a command that dies with this process: the kernel takes the thread
// that started it for its parent, so that thread waits for it. The channel gets
// what Wait returned.
func spawn(cmd *exec.Cmd) (<-chan error, error) {
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return ended, <-started
}
