// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
)

func TestMain(m *testing.M) {
	if netlab.Main() { // this process is a child of a lab
		return
	}
	testscript.Main(m, map[string]func(){"warmwire": main})
}

// TestScripts runs the command line's specification, testdata/*.txtar.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", Setup: setUpScript})
}

// setUpScript gives a script a home and two ports of its own.
func setUpScript(env *testscript.Env) error {
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("XDG_STATE_HOME", env.WorkDir+"/state")
	for _, name := range []string{"PORT", "ADMIN"} {
		port, err := freePort()
		if err != nil {
			return err
		}
		env.Setenv(name, port)
	}
	return os.MkdirAll(env.WorkDir+"/state", 0o700)
}

// freePort is free now; a script that loses it to somebody says so.
func freePort() (string, error) {
	port, err := testenv.Port()
	return strconv.Itoa(port), err
}
