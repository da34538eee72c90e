// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
)

func tuneCommand(path *string) *cobra.Command {
	var save bool
	cmd := &cobra.Command{
		Use:   "tune [KEY=VALUE | KEY=]...",
		Short: "Change settings of the running Warmwire until it ends, or with --save for good; without arguments, show what is changed",
		Example: "  warmwire tune upstreams.openai.buffer.stall_timeout=10m defaults.retry.budget=0.1\n" +
			"  warmwire tune 'upstreams.openai.retry.statuses=[429, 503]'\n" +
			"  warmwire tune log.level=debug\n" +
			"  warmwire tune --save drain.timeout=1m   # and in the file, whose comments stay\n" +
			"  warmwire tune log.level=          # back to the file's",
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			if !cfg.Admin.Enabled() {
				return fmt.Errorf("tune: admin.address is off, so there is nobody to tell")
			}
			if len(args) == 0 {
				return showTuned(cmd.Context(), cmd.OutOrStdout(), cfg)
			}
			changes := make(url.Values)
			for _, arg := range args {
				key, value, ok := strings.Cut(arg, "=")
				if !ok || key == "" || changes.Has(key) {
					return fmt.Errorf("%w: tune: %q is no KEY=VALUE, or stands twice; KEY= takes the file's value back", errUsage, arg)
				}
				if save && value == "" {
					return fmt.Errorf("%w: tune: --save %s= has nothing to save: the file's value is in the file", errUsage, key)
				}
				changes.Set(key, value)
			}
			if save {
				if err := checkFile(cmd.Context(), cfg, cmp.Or(*path, os.Getenv(config.FileVariable))); err != nil {
					return fmt.Errorf("tune: --save: %w", err)
				}
			}
			return tune(cmd.Context(), cmd.OutOrStdout(), cfg, changes, save)
		},
	}
	cmd.Flags().BoolVar(&save, "save", false, "write the settings into the configuration file too")
	return cmd
}

// checkFile refuses a file that the user names, with -c or WARMWIRE_CONFIG, and that is not
// the running process's: a save would change another one than is meant.
func checkFile(ctx context.Context, cfg *config.Config, named string) error {
	if named == "" {
		return nil
	}
	var st struct{ File string }
	if err := readRunning(ctx, cfg, "/v1/settings", &st); err != nil || st.File == "" {
		return err // without a file it is refused there
	}
	mine, err := os.Stat(named)
	if err != nil {
		return err
	}
	if its, err := os.Stat(st.File); err != nil || !os.SameFile(mine, its) {
		return fmt.Errorf("the running Warmwire reads %s, not %s: name that file; nothing has changed", st.File, named)
	}
	return nil
}

// editFile changes a configuration file, whole or not at all, and keeps its mode and
// owner. Where path is a link, what it points to is changed.
func editFile(path string, change config.Editing) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err = change(text, os.LookupEnv)
	if err != nil || text == nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // there only if something below failed
	_, err = f.Write(text)
	if err == nil {
		err = errors.Join(f.Chmod(info.Mode().Perm()), keepOwner(f, info), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// tune sends changes to the running process, which saves them too if it is asked to: it
// takes one change after the other, whoever sends them.
func tune(ctx context.Context, out io.Writer, cfg *config.Config, changes url.Values, save bool) error {
	target := "/v1/tune?" + changes.Encode()
	if save {
		target += "&save=true"
	}
	answer, refused, err := changeRunning(ctx, healthTimeout, cfg, target)
	if err != nil {
		return fmt.Errorf("tune: %w", err)
	}
	if refused != "" {
		return fmt.Errorf("tune: refused, nothing has changed: %s", refused)
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		value := changes.Get(key)
		if value == "" {
			value = "as in the file"
		}
		if _, err := fmt.Fprintf(out, "%s: %s\n", key, value); err != nil {
			return err
		}
	}
	if !save {
		return nil
	}
	var did struct{ Saved string }
	if err := json.Unmarshal(answer, &did); err != nil || did.Saved == "" {
		return fmt.Errorf("tune: --save: the running Warmwire does not say that it has saved: %s", answer)
	}
	_, err = fmt.Fprintln(out, "saved in", did.Saved)
	return err
}

// showTuned prints what is not as in the file.
func showTuned(ctx context.Context, out io.Writer, cfg *config.Config) error {
	var st struct{ Tuned map[string]string }
	if err := readRunning(ctx, cfg, "/v1/status", &st); err != nil {
		return fmt.Errorf("tune: %w", err)
	}
	if len(st.Tuned) == 0 {
		_, err := fmt.Fprintln(out, "everything is as in the file")
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(st.Tuned)) {
		if _, err := fmt.Fprintf(out, "%s: %s\n", key, st.Tuned[key]); err != nil {
			return err
		}
	}
	return nil
}
