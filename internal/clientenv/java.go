// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"software.sslmate.com/src/go-pkcs12"

	"github.com/warmwire/warmwire/internal/intercept/ca"
)

// javaOptions are added at the end, where they win over earlier ones. store is "" where
// nothing is to be trusted besides what Java trusts.
func javaOptions(before string, base *url.URL, noProxy, store string) string {
	port := base.Port()
	options := []string{
		"-Dhttp.proxyHost=" + base.Hostname(), "-Dhttp.proxyPort=" + port,
		"-Dhttps.proxyHost=" + base.Hostname(), "-Dhttps.proxyPort=" + port,
		"-Dhttp.nonProxyHosts=" + nonProxyHosts(noProxy),
	}
	if store != "" {
		options = append(options, "-Djavax.net.ssl.trustStore="+store, "-Djavax.net.ssl.trustStoreType=PKCS12",
			"-Djavax.net.ssl.trustStorePassword="+pkcs12.DefaultPassword)
	}
	for i, option := range options {
		options[i] = javaQuote(option)
	}
	ours := strings.Join(options, " ")
	return strings.TrimSpace(strings.TrimSpace(strings.ReplaceAll(before, ours, "")) + " " + ours)
}

// javaQuote quotes a word of JAVA_TOOL_OPTIONS, which knows quotes and no escapes.
func javaQuote(word string) string {
	switch {
	case !strings.ContainsAny(word, " \t'\""):
		return word
	case strings.Contains(word, `"`):
		return "'" + word + "'"
	default:
		return `"` + word + `"`
	}
}

// nonProxyHosts is NO_PROXY in Java's form. What Java excludes without the property is
// in it.
func nonProxyHosts(noProxy string) string {
	hosts := []string{"localhost", "127.*", "[::1]"}
	for entry := range strings.SplitSeq(noProxy, ",") {
		host := strings.TrimPrefix(entry, "*")
		switch {
		case slices.Contains(loopback, entry) || strings.ContainsAny(entry, "/|"): // Java has no prefixes
			continue
		case entry == "*":
			host = "*"
		case strings.HasPrefix(host, "."):
			host = "*" + host
		default:
			hosts = append(hosts, "*."+host)
		}
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return strings.Join(hosts, "|")
}

// writeJavaStore writes certificates as a trust store. PKCS #12 with the older ciphers is
// what every Java since 8 reads; certificates are no secret.
func writeJavaStore(path string, text []byte) error {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("clientenv: %w", err)
		}
		certs = append(certs, cert)
	}
	if old, err := os.ReadFile(path); err == nil {
		have, err := pkcs12.DecodeTrustStore(old, pkcs12.DefaultPassword)
		if err == nil && slices.EqualFunc(have, certs, func(a, b *x509.Certificate) bool { return bytes.Equal(a.Raw, b.Raw) }) {
			return nil
		}
	}
	entries := make([]pkcs12.TrustStoreEntry, len(certs))
	for i, cert := range certs { // Java keeps one of those that share a name
		entries[i] = pkcs12.TrustStoreEntry{Cert: cert, FriendlyName: ca.Fingerprint(cert)}
	}
	store, err := pkcs12.LegacyDES.EncodeTrustStoreEntries(entries, pkcs12.DefaultPassword)
	if err != nil {
		return fmt.Errorf("clientenv: the trust store for Java: %w", err)
	}
	return ca.WritePublic(path, store)
}
