// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Store holds the system's root certificates and follows their changes.
//
// On Linux it reads what crypto/x509 reads, which does so once per process: the first
// file that is there of a list, or SSL_CERT_FILE, and all files of some folders, or
// of SSL_CERT_DIR. The files' times and sizes are looked at when roots are asked for,
// every 5 seconds at most, those of a folder that has lost or won none once a minute
// (with the 290 files of Debian: 20 µs, 2 ms once a minute, and 18 ms to read them).
// A change is taken over when its files are 5 seconds old or two looks in a row have
// seen it, so that files which are being written are not read half. If they then hold no certificate
// the last good roots stay, and if a file ends within a certificate they stay for a
// minute. Pipes and files of more than 16 MiB are not read.
//
// If a Linux system has no roots from the start, those that come with the program
// serve until it has. Elsewhere the platform's verifier is asked, by way of
// crypto/x509.
type Store struct {
	now      func() time.Time
	file     string   // SSL_CERT_FILE, or ""
	dirs     []string // SSL_CERT_DIR, or nil
	current  atomic.Pointer[rootSet]
	fault    atomic.Pointer[error]
	nextLook atomic.Int64 // Unix nanoseconds; never = not on this platform

	// mu guards the fields below. It is held while files are looked at and read, and
	// taken with TryLock only: whoever finds it taken uses the roots there are.
	mu      sync.Mutex
	taken   []fileStamp // of what current was read from
	seen    []fileStamp // another state, seen at the last look
	looks   int         // how many looks saw it in a row
	shallow int         // looks in a row at the folders, not at what is in them
	outside []fileStamp // the file and the folders themselves, when taken was last found unchanged
}

const (
	lookEvery   = 5 * time.Second
	deepLooks   = 12 // until the files of a folder that looks the same are looked at: a minute
	brokenLooks = 12 // until a file that ends within a certificate is: a minute
	maxRootFile = 16 << 20
)

// Where Linux distributions keep them, in the order of crypto/x509.
var (
	rootFiles = []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Gentoo, Arch
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL 6
		"/etc/ssl/ca-bundle.pem",                            // openSUSE
		"/etc/pki/tls/cacert.pem",                           // OpenELEC
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL 7
		"/etc/ssl/cert.pem",                                 // Alpine
	}
	rootDirs = []string{"/etc/ssl/certs", "/etc/pki/tls/certs"}
)

// State says which roots are in force.
type State struct {
	Source       string // for people: the files, or "embedded", or the platform
	Certificates int    // 0 if only the platform knows
	Err          error  // why a change on disk was not taken over
}

// NewStore reads the system's roots. now nil = time.Now.
func NewStore(now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	s := &Store{now: now, file: os.Getenv("SSL_CERT_FILE")}
	if dirs := os.Getenv("SSL_CERT_DIR"); dirs != "" {
		s.dirs = filepath.SplitList(dirs)
	}
	if runtime.GOOS != "linux" {
		s.current.Store(platformRoots())
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outside = s.stamps(false)
	s.taken = s.stamps(true)
	s.nextLook.Store(now().Add(lookEvery).UnixNano())
	set, _, err := s.read(s.taken)
	if err != nil {
		set = embeddedRoots()
	}
	s.setFault(s.unreadable())
	s.current.Store(set)
	return s
}

// platformRoots are those of crypto/x509, which asks the system's verifier where
// there is one.
func platformRoots() *rootSet {
	pool, err := x509.SystemCertPool()
	if err != nil || pool.Equal(x509.NewCertPool()) {
		return embeddedRoots()
	}
	set := newRootSet()
	set.pool, set.source, set.sum = pool, "the roots of this system", sha256.Sum256([]byte("platform"))
	return set
}

// Pool returns the roots of now. It must not be changed.
func (s *Store) Pool() *x509.CertPool { return s.roots().pool }

// PEM returns the system's roots as they are now, read from its files. It is an error
// if the system has none or does not keep them in files, or if SSL_CERT_FILE names one
// that is not there.
func (s *Store) PEM() ([]byte, error) {
	set := s.roots()
	if s.file != "" {
		if err := s.unreadable(); err != nil {
			return nil, err
		}
	}
	if set.embedded || len(set.ders) == 0 {
		return nil, errors.New("the roots of this system are in no file: install them (Debian: apt-get install ca-certificates), or name their file in SSL_CERT_FILE")
	}
	var text []byte
	for _, der := range set.ders {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return text, nil
}

// State says what is in force.
func (s *Store) State() State {
	set := s.roots()
	return State{Source: set.source, Certificates: set.count, Err: s.trouble()}
}

func (s *Store) trouble() error {
	if err := s.fault.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *Store) setFault(err error) {
	if err == nil {
		s.fault.Store(nil)
		return
	}
	s.fault.Store(&err)
}

// roots returns those in force, after a look at the files if one is due.
func (s *Store) roots() *rootSet {
	due, now := s.nextLook.Load(), s.now()
	// A clock that was put back must not stop the looks.
	early := now.UnixNano() < due && time.Duration(due-now.UnixNano()) <= lookEvery
	if due != 0 && !early && s.mu.TryLock() {
		s.nextLook.Store(now.Add(lookEvery).UnixNano())
		s.lookLocked(now)
		s.mu.Unlock()
	}
	return s.current.Load()
}

func (s *Store) lookLocked(now time.Time) {
	outside := s.stamps(false)
	if s.seen == nil && s.shallow < deepLooks-1 && sameStamps(outside, s.outside) {
		s.shallow++
		return
	}
	s.shallow = 0
	found := s.stamps(true)
	if sameStamps(found, s.taken) {
		s.seen, s.looks, s.outside = nil, 0, outside
		s.setFault(s.unreadable())
		return
	}
	if !sameStamps(found, s.seen) {
		s.seen, s.looks = found, 0
	}
	s.looks++
	if s.looks == 1 && (recent(outside, now) || recent(found, now)) {
		return
	}
	set, whole, err := s.read(found)
	switch {
	case err != nil:
		s.setFault(fmt.Errorf("the system's roots have changed: %w; the last good ones stay in force", err))
		return
	case !whole && s.looks < brokenLooks:
		s.setFault(errors.New("the system's roots have changed: a file ends within a certificate; the last good ones stay in force for now"))
		return
	}
	s.taken, s.seen, s.looks, s.outside = found, nil, 0, outside
	s.current.Store(set)
	s.setFault(nil)
}

// unreadable tells of an SSL_CERT_FILE that is not there: whoever set it expects it
// to be used.
func (s *Store) unreadable() error {
	if s.file == "" {
		return nil
	}
	info, err := os.Stat(s.file)
	switch {
	case err != nil:
		return fmt.Errorf("SSL_CERT_FILE: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("SSL_CERT_FILE: %s is not a regular file", s.file)
	}
	return nil
}

// A fileStamp tells a file's content from a later one. Its folder is told by dir.
type fileStamp struct {
	path string
	dir  string // "" for the one file
	info os.FileInfo
}

func sameStamps(a, b []fileStamp) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].path != b[i].path || !sameFile(a[i].info, b[i].info) {
			return false
		}
	}
	return true
}

// recent says that a file was written, or a folder has won or lost one, since the
// look before the last could have seen it.
func recent(files []fileStamp, now time.Time) bool {
	return slices.ContainsFunc(files, func(f fileStamp) bool { return now.Sub(f.info.ModTime()) < lookEvery })
}

func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// stamps lists the files that roots are read from, and how they are now; or the one
// file and the folders themselves, whose times tell of files that came or went.
func (s *Store) stamps(deep bool) []fileStamp {
	var found []fileStamp
	files, dirs := rootFiles, rootDirs
	if s.file != "" {
		files = []string{s.file}
	}
	if s.dirs != nil {
		dirs = s.dirs
	}
	add := func(path, dir string) bool {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxRootFile {
			return false
		}
		found = append(found, fileStamp{path, dir, info})
		return true
	}
	for _, file := range files {
		if add(file, "") {
			break
		}
	}
	for _, dir := range dirs {
		if !deep {
			if info, err := os.Stat(dir); err == nil {
				found = append(found, fileStamp{dir, dir, info})
			}
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if path := filepath.Join(dir, entry.Name()); !linkWithin(entry, path) {
				add(path, dir)
			}
		}
	}
	return found
}

// linkWithin says that a file is another name of one in the same folder, as OpenSSL's
// hashes are.
func linkWithin(entry os.DirEntry, path string) bool {
	if entry.Type()&os.ModeSymlink == 0 {
		return false
	}
	target, err := os.Readlink(path)
	return err == nil && !strings.ContainsRune(target, filepath.Separator)
}

// read makes a set of the files. whole is false if one of them ends within a
// certificate. As crypto/x509 does, it passes over what it cannot parse.
func (s *Store) read(files []fileStamp) (set *rootSet, whole bool, err error) {
	set, whole = newRootSet(), true
	seen := make(map[[sha256.Size]byte]bool)
	var sums [][sha256.Size]byte
	var sources []string
	for _, f := range files {
		text, err := readFile(f.path)
		if err != nil {
			continue
		}
		before := len(sums)
		for rest := text; ; {
			block, after := pem.Decode(rest)
			if block == nil {
				whole = whole && !begun(after)
				break
			}
			part := rest[:len(rest)-len(after)]
			rest = after
			sum := sha256.Sum256(block.Bytes)
			if block.Type != "CERTIFICATE" || len(block.Headers) != 0 || seen[sum] {
				continue
			}
			seen[sum] = true
			// Of PEM the pool keeps the bytes, a tenth of a parsed certificate.
			if set.pool.AppendCertsFromPEM(part) {
				set.ders = append(set.ders, block.Bytes)
				sums = append(sums, sum)
			}
		}
		if len(sums) > before {
			sources = append(sources, placeOf(f))
		}
	}
	if len(sums) == 0 {
		return nil, whole, errors.New("they hold no certificate")
	}
	set.count, set.sum = len(sums), sumOf(sums)
	set.source = "the system's roots (" + strings.Join(compact(sources), ", ") + ")"
	return set, whole, nil
}

func placeOf(f fileStamp) string {
	if f.dir != "" {
		return "folder " + f.dir
	}
	return "file " + f.path
}

// compact drops what is said already.
func compact(list []string) []string {
	var out []string
	for _, s := range list {
		if len(out) == 0 || out[len(out)-1] != s {
			out = append(out, s)
		}
	}
	return out
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRootFile))
}
