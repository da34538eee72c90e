// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// An instruction is one line of a container file, continuations joined.
type instruction struct {
	word string
	args []string
}

func parseContainerfile(text string) []instruction {
	var out []instruction
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		out = append(out, instruction{strings.ToUpper(fields[0]), fields[1:]})
	}
	return out
}

// containerFaults returns what is wrong with the image that text describes.
func containerFaults(text string) []string {
	var faults []string
	instructions := parseContainerfile(text)
	last := 0 // the final stage is the image
	for i, in := range instructions {
		switch {
		case in.word == "FROM":
			last = i
			if tag := strings.Join(in.args, " "); strings.Contains(tag, ":latest") {
				faults = append(faults, "a stage is built from whatever is latest: "+tag)
			}
		case in.word == "ADD":
			faults = append(faults, "ADD fetches and unpacks behind one's back: use COPY")
		case in.word == "RUN" && slices.Contains(in.args, "go") && slices.Contains(in.args, "build") && !slices.Contains(in.args, "CGO_ENABLED=0"):
			faults = append(faults, "the program is not static without CGO_ENABLED=0")
		}
	}
	return append(faults, imageFaults(instructions[last:])...)
}

func imageFaults(stage []instruction) []string {
	var faults []string
	seen := map[string]string{}
	for _, in := range stage {
		seen[in.word] = strings.Join(in.args, " ")
		if in.word == "COPY" && !strings.HasPrefix(seen["COPY"], "--from=") {
			faults = append(faults, "the image takes a file that no stage built: "+seen["COPY"])
		}
		if in.word == "RUN" {
			faults = append(faults, "a scratch image has nothing to run: "+seen["RUN"])
		}
	}
	want := map[string]string{
		"FROM":       "scratch",
		"USER":       "65532:65532", // by number: scratch has no /etc/passwd, and Kubernetes' runAsNonRoot wants one
		"ENTRYPOINT": `["/warmwire"]`,
		"CMD":        `["run"]`,
		"STOPSIGNAL": "SIGTERM",
	}
	for word, value := range want {
		if seen[word] != value {
			faults = append(faults, fmt.Sprintf("%s is %q, want %q", word, seen[word], value))
		}
	}
	for _, word := range []string{"EXPOSE", "VOLUME"} {
		if _, ok := seen[word]; ok {
			faults = append(faults, word+" promises what loopback and a read-only root do not give")
		}
	}
	slices.Sort(faults)
	return faults
}

func TestContainerfile(t *testing.T) {
	text := read(t, "container/Containerfile")
	for _, fault := range containerFaults(text) {
		t.Error(fault)
	}
	faults := map[string]struct{ old, new, want string }{
		"a distribution": {"FROM scratch", "FROM debian:12", "FROM is"},
		"root":           {"USER 65532:65532", "", "USER is"},
		"named user":     {"USER 65532:65532", "USER nobody", "USER is"},
		"shell form":     {`ENTRYPOINT ["/warmwire"]`, "ENTRYPOINT /warmwire", "ENTRYPOINT is"},
		"remote file":    {"COPY . .", "ADD https://example.org/x.tar /x", "ADD fetches"},
		"not static":     {"CGO_ENABLED=0", "CGO_ENABLED=1", "not static"},
		"unbuilt file":   {"COPY --from=build /out/warmwire /warmwire", "COPY bin/warmwire /warmwire", "no stage built"},
		"run in scratch": {"STOPSIGNAL", "RUN true\nSTOPSIGNAL", "nothing to run"},
		"port":           {"STOPSIGNAL", "EXPOSE 8484\nSTOPSIGNAL", "EXPOSE promises"},
		"latest":         {"FROM ${GO_IMAGE}", "FROM golang:latest", "latest"},
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			broken := strings.Replace(text, f.old, f.new, 1)
			if got := strings.Join(containerFaults(broken), "\n"); broken == text || !strings.Contains(got, f.want) {
				t.Errorf("found %q, want %q", got, f.want)
			}
		})
	}
}
