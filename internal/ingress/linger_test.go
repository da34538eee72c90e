// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestEarlyAnswersOverHTTP2ArriveAtCurl: an answer that comes while the app still sends
// is the answer, and no broken stream, whoever gave it.
func TestEarlyAnswersOverHTTP2ArriveAtCurl(t *testing.T) {
	curl := testenv.Need(t, "curl")
	up := testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.Send("HTTP/1.1 429 Too Many Requests\nContent-Length: 4\nConnection: close\n\nslow")
		_, _ = c.Rest()
	})
	r := newRig(t, up, func(tab *Table, _ *Upstream) { tab.MaxBody = 4 << 20 })
	for name, one := range map[string]struct {
		size  int
		known bool
		want  string
	}{
		"the upstream's":                     {1 << 20, true, "429"},
		"the upstream's, of unknown length":  {1 << 20, false, "429"},
		"limits.body":                        {8 << 20, true, "413"},
		"limits.body, by a length not known": {8 << 20, false, "4"}, // whichever is first
	} {
		t.Run(name, func(t *testing.T) {
			how := []string{"--data-binary", "@-"}
			if !one.known {
				how = []string{"-X", "POST", "-T", "-"}
			}
			for range 8 { // the race is the server's and the client's
				cmd := exec.CommandContext(t.Context(), curl, append([]string{"-sS", "--http2-prior-knowledge", "-H", "Expect:", "-o", "/dev/null", "-w", "%{http_code}",
					"http://" + r.addr + "/up/v1/x"}, how...)...)
				cmd.Stdin = bytes.NewReader(make([]byte, one.size))
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.HasPrefix(string(out), one.want) {
					t.Errorf("%s, %v", out, err)
				}
				if rec := r.record(); rec.AppProto != "HTTP/2.0" || rec.Status == http.StatusOK {
					t.Errorf("record %+v", rec)
				}
			}
		})
	}
}
