// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A ClientCert is a certificate of ours, with its key, for servers that ask for one
// (RFC 8446 §4.3.2). Its files are looked at when it is used, every 5 seconds at
// most, and read again if one has changed. If they do not belong together then, or
// cannot be used, the last good certificate stays in use and [ClientCert.Err] says
// why: whoever renews it writes one file after the other.
type ClientCert struct {
	certFile, keyFile string
	now               func() time.Time
	current           atomic.Pointer[identity]
	fault             atomic.Pointer[error]
	nextLook          atomic.Int64 // Unix nanoseconds

	mu   sync.Mutex     // held while files are read; taken with TryLock only
	read [2]os.FileInfo // of the files when they were last read, good or bad; guarded by mu
}

// identity is one certificate with its name.
type identity struct {
	cert tls.Certificate
	id   string
}

// LoadClientCert reads a certificate, its issuers after it if the server needs them,
// and its key, both PEM. One that has expired is an error.
func LoadClientCert(certFile, keyFile string) (*ClientCert, error) {
	return loadClientCert(certFile, keyFile, time.Now)
}

func loadClientCert(certFile, keyFile string, now func() time.Time) (*ClientCert, error) {
	c := &ClientCert{certFile: certFile, keyFile: keyFile, now: now}
	c.read = c.stat()
	c.nextLook.Store(now().Add(lookEvery).UnixNano())
	found, err := c.load()
	if err != nil {
		return nil, err
	}
	c.current.Store(found)
	return c, nil
}

// ID names the certificate in use: it is a hash of it. Connections and sessions of
// one ID are never used under another.
func (c *ClientCert) ID() string { return c.latest().id }

// Apply makes cfg show the certificate in use to a server that asks, and returns its
// ID, which does not change for cfg if the files do.
func (c *ClientCert) Apply(cfg *tls.Config) (id string) {
	now := c.latest()
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return c.valid(now)
	}
	return now.id
}

// GetClientCertificate is for [tls.Config.GetClientCertificate]: the certificate in
// use at the time of the handshake. Where sessions are kept by ID, use Apply.
func (c *ClientCert) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return c.valid(c.latest())
}

// Err says why the files as they are now are not in use; nil if they are.
func (c *ClientCert) Err() error {
	c.latest()
	if err := c.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// NotAfter is when the certificate in use expires.
func (c *ClientCert) NotAfter() time.Time { return c.latest().cert.Leaf.NotAfter }

// valid refuses a certificate that expired while in use: the server would do it with
// an alert that names nothing.
func (c *ClientCert) valid(i *identity) (*tls.Certificate, error) {
	if err := c.inTime(i); err != nil {
		return nil, err
	}
	return &i.cert, nil
}

func (c *ClientCert) latest() *identity {
	due, now := c.nextLook.Load(), c.now()
	early := now.UnixNano() < due && time.Duration(due-now.UnixNano()) <= lookEvery
	if !early && c.mu.TryLock() {
		c.nextLook.Store(now.Add(lookEvery).UnixNano())
		c.lookLocked()
		c.mu.Unlock()
	}
	return c.current.Load()
}

func (c *ClientCert) lookLocked() {
	found := c.stat()
	same := true
	for i, info := range found {
		before := c.read[i]
		same = same && (info == nil) == (before == nil) && (info == nil || sameFile(info, before))
	}
	if same {
		return
	}
	c.read = found
	next, err := c.load()
	if err != nil {
		err = fmt.Errorf("%w; the one that was read before stays in use", err)
		c.fault.Store(&err)
		return
	}
	c.current.Store(next)
	c.fault.Store(nil)
}

func (c *ClientCert) stat() (found [2]os.FileInfo) {
	for i, path := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(path); err == nil {
			found[i] = info
		}
	}
	return found
}

func (c *ClientCert) load() (*identity, error) {
	certs, err := os.ReadFile(c.certFile)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return nil, fmt.Errorf("client certificate's key: %w", err)
	}
	cert, err := tls.X509KeyPair(certs, key)
	if err != nil {
		// crypto/tls quotes nothing of the key.
		return nil, fmt.Errorf("client certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	if cert.Leaf == nil { // GODEBUG=x509keypairleaf=0
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return nil, fmt.Errorf("client certificate %s: %w", c.certFile, err)
		}
	}
	sum := sha256.Sum256(cert.Leaf.Raw)
	next := &identity{cert: cert, id: hex.EncodeToString(sum[:])}
	return next, c.inTime(next)
}

func (c *ClientCert) inTime(i *identity) error {
	leaf, now := i.cert.Leaf, c.now()
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("client certificate %s: %s expired at %s, %s ago by this machine's clock (%s): renew it",
			c.certFile, describe(leaf), stamp(leaf.NotAfter), span(now.Sub(leaf.NotAfter)), stamp(now))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("client certificate %s: %s is not valid before %s, now is %s: is this machine's clock right?",
			c.certFile, describe(leaf), stamp(leaf.NotBefore), stamp(now))
	}
	return nil
}
