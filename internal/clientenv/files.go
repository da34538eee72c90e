// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	_ "embed"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// hookName is the file that Node requires.
const hookName = "node-proxy.cjs"

//go:embed node-proxy.cjs
var hook []byte

func writeHook(path string) error { return ca.WritePublic(path, hook) }

// A trustVariable names a file of certificates.
type trustVariable struct {
	name string
	adds bool // to what the program trusts; else it stands in its place
	// kept: set only where it is set already, since its programs heed another as well
	kept bool
	who  string
}

var trustVariables = []trustVariable{
	{name: "SSL_CERT_FILE", who: "OpenSSL, Python's ssl and httpx, Go on Linux, Ruby, rustls-native-certs"},
	{name: "REQUESTS_CA_BUNDLE", who: "Python requests, botocore"},
	{name: "CURL_CA_BUNDLE", who: "curl, and requests without REQUESTS_CA_BUNDLE"},
	{name: "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", who: "gRPC in C++, Python, Ruby, PHP"},
	{name: "AWS_CA_BUNDLE", kept: true, who: "the AWS SDKs"},
	{name: "NIX_SSL_CERT_FILE", kept: true, who: "programs built by Nix"},
	{name: "GIT_SSL_CAINFO", kept: true, who: "git"},
	{name: "NODE_EXTRA_CA_CERTS", adds: true, who: "Node.js, Bun"},
	{name: "DENO_CERT", adds: true, who: "Deno"},
}

// trust writes the files of certificates and returns that of Java, "" where an option of
// the user's names another.
func (w Way) trust(env Env, set map[string]string) (store string, err error) {
	roots, err := w.Roots()
	if err != nil {
		return "", err
	}
	for _, v := range trustVariables {
		before := env.get(v.name)
		if v.kept && before == "" {
			continue
		}
		path, text, err := w.joined(v.name, before)
		if err != nil {
			return "", err
		}
		if !v.adds {
			text = slices.Concat(roots, []byte("\n"), text)
		}
		if text = withoutOurs(text); v.adds && len(text) == 0 {
			text = ca.PEM(w.Authorities...)
		} else if text, err = ca.Bundle(text, w.Authorities...); err != nil {
			return "", err
		}
		if err := ca.WritePublic(path, text); err != nil {
			return "", err
		}
		set[v.name] = path
	}
	store = filepath.Join(w.Dir, "java-truststore.p12")
	if options := env.get("JAVA_TOOL_OPTIONS"); strings.Contains(options, "javax.net.ssl.trustStore=") && !strings.Contains(options, store) {
		return "", nil
	}
	text, err := os.ReadFile(set["SSL_CERT_FILE"])
	if err != nil {
		return "", fmt.Errorf("clientenv: %w", err)
	}
	return store, writeJavaStore(store, text)
}

// joined returns the file for a variable, and what the file that it has named before
// holds. Each file before has one of its own, so that two shells do not disturb each
// other; ours is made anew in its place.
func (w Way) joined(name, before string) (path string, text []byte, err error) {
	path = filepath.Join(w.Dir, name+".pem")
	if filepath.Dir(before) == filepath.Clean(w.Dir) {
		path = before
	} else if before != "" {
		sum := sha256.Sum256([]byte(before))
		path = filepath.Join(w.Dir, name+"-"+hex.EncodeToString(sum[:4])+".pem")
	}
	text, err = readCertificates(before)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", name, err)
	}
	return path, text, nil
}

// maxFile is far above what a file of roots has.
const maxFile = 16 << 20

// readCertificates reads a file. A folder, which some clients take, is left out, and so is
// a file that is not there: the program did not have it before either.
func readCertificates(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case path == "" || errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir():
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return nil, fmt.Errorf("%s is no plain file of at most %d MiB", path, maxFile>>20)
	}
	return os.ReadFile(path)
}

// withoutOurs leaves authorities of a Warmwire out: those in force are added anew, and
// others are of runs that have ended or of keys that were retired.
func withoutOurs(text []byte) []byte {
	if !bytes.Contains(text, []byte("-----BEGIN ")) {
		return nil
	}
	var out bytes.Buffer
	rest := text
	for {
		var block *pem.Block
		before := rest
		if block, rest = pem.Decode(rest); block == nil {
			out.Write(before) // a certificate that is cut is ca.Bundle's to refuse
			return out.Bytes()
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && isOurs(cert) {
			continue
		}
		_ = pem.Encode(&out, block) // to memory
	}
}

func isOurs(cert *x509.Certificate) bool {
	return slices.Equal(cert.Subject.Organization, []string{"Warmwire"}) && cert.PermittedDNSDomainsCritical
}
