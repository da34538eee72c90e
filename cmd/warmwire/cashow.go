// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// expiryNotice is how long before its end an authority is warned of: time to hand the
// next one out.
const expiryNotice = 60 * 24 * time.Hour

// A caState is one authority for machines. No key is in it.
type caState struct {
	Role      string     `json:"role"`
	Subject   string     `json:"subject"`
	SHA256    string     `json:"sha256"`
	NotBefore time.Time  `json:"not_before"`
	NotAfter  time.Time  `json:"not_after"`
	SignsFrom *time.Time `json:"signs_from,omitempty"`
	Hosts     []string   `json:"hosts"`
	Warning   string     `json:"warning,omitempty"`
}

func caShowCommand(path *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "show", Short: "Show the authorities, their hosts and times",
		Long: `show lists the authorities of this installation: which one signs, their SHA-256, hosts and
times, and warns of one that ends within 60 days. It makes none and shows no key.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return showCA(cmd, *path, asJSON) }}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list, empty if there is none yet")
	return cmd
}

// caWarning says that the authority which signs has ended or ends soon, "" if it does not.
// Another's end does no harm.
func caWarning(s ca.State, now time.Time) string {
	left := s.NotAfter.Sub(now)
	switch {
	case s.Role != ca.Active:
		return ""
	case now.Before(s.NotBefore):
		return "it is not valid yet: set the clock of this machine right"
	case left <= 0:
		return "it has expired: `warmwire ca rotate`, then `warmwire ca rotate --switch`, and trust the new one"
	case left < expiryNotice:
		return fmt.Sprintf("it expires in %d days: `warmwire ca rotate`, and hand the next one out", int(left.Hours()/24))
	}
	return ""
}

// showCA makes none.
func showCA(cmd *cobra.Command, path string, asJSON bool) error {
	cfg, _, err := loadConfig(path)
	if err != nil {
		return err
	}
	now := time.Now()
	states, err := ca.Read(caDir(cfg), now)
	none := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !none:
		return err
	case asJSON:
		return printCAJSON(cmd, states, now)
	case none:
		return printOut(cmd, []byte("there is none yet: `warmwire ca path` makes it\n"))
	}
	var text strings.Builder
	for _, s := range states {
		fmt.Fprintf(&text, "%s: %s\n  SHA-256 %s\n  valid   %s to %s\n", s.Role, s.Subject, s.Fingerprint, s.NotBefore.Format(time.DateOnly), s.NotAfter.Format(time.DateOnly))
		switch {
		case s.Role == ca.Next && s.SignsFrom.IsZero():
			fmt.Fprintln(&text, "  signs   when `warmwire ca rotate --switch` says so")
		case s.Role == ca.Next:
			fmt.Fprintln(&text, "  signs   from", s.SignsFrom.Local().Format(time.RFC3339))
		}
		fmt.Fprintln(&text, "  hosts  ", strings.Join(s.Hosts, " "))
		if warning := caWarning(s, now); warning != "" {
			fmt.Fprintln(&text, "  warning", warning)
		}
	}
	return printOut(cmd, []byte(text.String()))
}

func printCAJSON(cmd *cobra.Command, states []ca.State, now time.Time) error {
	list := []caState{}
	for _, s := range states {
		one := caState{Role: string(s.Role), Subject: s.Subject, SHA256: s.Fingerprint, NotBefore: s.NotBefore.UTC(), NotAfter: s.NotAfter.UTC(), Hosts: s.Hosts, Warning: caWarning(s, now)}
		if !s.SignsFrom.IsZero() {
			from := s.SignsFrom.UTC()
			one.SignsFrom = &from
		}
		list = append(list, one)
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	return e.Encode(list)
}
