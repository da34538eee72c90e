// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Why there is no certificate for a host.
var (
	// ErrUnlisted is matched for a host that is not in Config.Hosts.
	ErrUnlisted = errors.New("the host is not listed")
	// ErrUncovered is matched for a listed host that no authority permits: it was listed
	// after they were made. A rotation helps.
	ErrUncovered = errors.New("no authority permits the host")
	// ErrExpired is matched if the clock is outside the life of each authority that
	// permits the host. A rotation helps, if the clock is right.
	ErrExpired = errors.New("the authority is not valid at this time")
)

const (
	maxHosts = 1000 // in one certificate: 25 KB
	// defaultValidity is that of an authority. Two years: long enough that nobody is
	// asked often, short enough that it is not forgotten.
	defaultValidity = 2*365*24*time.Hour - 24*time.Hour
	maxLeafValidity = 7 * 24 * time.Hour
	defaultCache    = 1024
)

// Config says for whom certificates are made. Zero means the default.
type Config struct {
	Hosts        []string         // names and addresses, each without a port; needed
	Machine      string           // stands in the subject of an authority; "" = localhost
	Validity     time.Duration    // of a new authority, from 48 hours before now; 0 = 729 days
	LeafValidity time.Duration    // of a host's certificate, from 24 hours before; 0 = 7 days, the most
	Cache        int              // hosts kept; 0 = 1024
	Now          func() time.Time // nil = time.Now
}

// WithDefaults returns c with its zero fields set.
func (c Config) WithDefaults() Config {
	c.Machine = cmp.Or(c.Machine, "localhost")
	c.Validity = cmp.Or(c.Validity, defaultValidity)
	c.LeafValidity = cmp.Or(c.LeafValidity, maxLeafValidity)
	c.Cache = cmp.Or(c.Cache, defaultCache)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate reports what cannot work.
func (c Config) Validate() error {
	if c = c.WithDefaults(); c.Validity <= 2*rootBackdate {
		return fmt.Errorf("ca: an authority that is valid for %v, %v of it gone, is too short", c.Validity, rootBackdate)
	}
	if c.LeafValidity <= 2*leafBackdate || c.LeafValidity > maxLeafValidity {
		return fmt.Errorf("ca: certificates of %v: more than %v and at most %v", c.LeafValidity, 2*leafBackdate, maxLeafValidity)
	}
	if c.Cache < 1 {
		return fmt.Errorf("ca: a cache of %d", c.Cache)
	}
	_, err := names(c.Hosts)
	return err
}

// names returns hosts in the spelling of Name, each once.
func names(hosts []string) ([]string, error) {
	var out []string
	for _, host := range hosts {
		name, err := Name(host)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		out = append(out, name)
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) == 0 || len(out) > maxHosts {
		return nil, fmt.Errorf("ca: %d hosts are listed, not 1 to %d", len(out), maxHosts)
	}
	return out, nil
}

// An Authority makes certificates for the hosts of its Config.
type Authority struct {
	cfg    Config   // with defaults
	hosts  []string // in the spelling of Name, sorted
	key    *ecdsa.PrivateKey
	keyID  []byte
	leaves *leafCache

	files    *folder // nil: in memory
	current  atomic.Pointer[signers]
	fault    atomic.Pointer[error] // why the file was not read again
	nextLook atomic.Int64          // Unix nanoseconds
	changing sync.Mutex            // held while current is replaced
}

// New makes an authority in memory, for one run. Nothing of it is written.
func New(cfg Config) (*Authority, error) {
	a, err := build(cfg)
	if err != nil {
		return nil, err
	}
	s, err := a.first()
	if err != nil {
		return nil, err
	}
	a.current.Store(s)
	return a, nil
}

// Open reads the authority in a folder, and makes both if there is none. A *FileError
// says what is wrong with a file, and that it was left as it is. That a host is not
// covered is no error here, since the others are: ask Covers.
func Open(dir string, cfg Config) (*Authority, error) {
	a, err := build(cfg)
	if err != nil {
		return nil, err
	}
	a.files = &folder{path: dir}
	s, err := a.files.readOrMake(a.first)
	if err != nil {
		return nil, err
	}
	a.current.Store(s)
	a.nextLook.Store(a.now().Add(lookEvery).UnixNano())
	return a, nil
}

// build makes all but the authority.
func build(cfg Config) (*Authority, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	hosts, err := names(cfg.Hosts)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("ca: make the key: %w", err)
	}
	id, err := keyID(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	return &Authority{cfg: cfg, hosts: hosts, key: key, keyID: id, leaves: newLeafCache(cfg.Cache)}, nil
}

// now is the wall clock's time: the other one stands still while a machine sleeps.
func (a *Authority) now() time.Time { return a.cfg.Now().Round(0) }

// first makes the first authority, which signs at once.
func (a *Authority) first() (*signers, error) {
	s, err := newSigner(a.hosts, a.cfg.Machine, a.cfg.Validity, a.now())
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	s.from = s.cert.NotBefore
	return &signers{list: []*signer{s}}, nil
}

// An UncoveredError names the hosts that no authority permits. It matches ErrUncovered.
type UncoveredError struct{ Hosts []string }

func (e *UncoveredError) Error() string {
	return fmt.Sprintf("the certificate authority does not permit %s: it needs a rotation, and the new authority must be trusted anew", strings.Join(e.Hosts, ", "))
}

func (e *UncoveredError) Is(target error) bool { return target == ErrUncovered }

// Covers returns an *UncoveredError if there are hosts that neither the present nor
// the next authority permits.
func (a *Authority) Covers(hosts ...string) error {
	now := a.now()
	set := a.signers(now)
	var missing []string
	for _, host := range hosts {
		name, err := Name(host)
		if err != nil {
			return fmt.Errorf("ca: %w", err)
		}
		if !slices.ContainsFunc(set.list[set.active(now):], func(s *signer) bool { return s.permits(name) }) {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return &UncoveredError{missing}
	}
	return nil
}

// A Role is what an authority does at present.
type Role string

// The roles, in the order in which an authority has them.
const (
	Next   Role = "next"   // trusted in time; signs for hosts that the active one does not permit
	Active Role = "active" // signs
	Old    Role = "old"    // has signed; still to be trusted while its certificates are in use
)

// State describes one authority. No key is in it.
type State struct {
	Role                Role
	Subject             string
	Fingerprint         string // SHA-256 of the certificate, lower-case hex
	Hosts               []string
	NotBefore, NotAfter time.Time
	SignsFrom           time.Time // zero: when it is told to
	Certificate         *x509.Certificate
}

// States lists the authorities, the oldest first. err says why a change of the file
// was not taken over.
func (a *Authority) States() (list []State, err error) {
	now := a.now()
	list = a.signers(now).states(now)
	if fault := a.fault.Load(); fault != nil {
		err = *fault
	}
	return list, err
}

// Certificates are those that clients must trust, the oldest first: more than one
// during a rotation.
func (a *Authority) Certificates() []*x509.Certificate {
	var certs []*x509.Certificate
	for _, s := range a.signers(a.now()).list {
		certs = append(certs, s.cert)
	}
	return certs
}

// PEM encodes certificates.
func PEM(certs ...*x509.Certificate) []byte {
	var text []byte
	for _, cert := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return text
}

// Fingerprint is the SHA-256 of a certificate in hex.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}
