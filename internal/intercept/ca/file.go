// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	fileName   = "authority.json"
	lockName   = "authority.lock"
	fileFormat = "warmwire-ca-1"
	maxFile    = 1 << 20 // 1 MiB: three authorities of 1000 long names fit
)

// A Reason says why a file is refused.
type Reason string

// The reasons. A file that is refused is left as it is.
const (
	Damaged   Reason = "damaged"    // cut or changed
	OtherKind Reason = "other kind" // not ours
	Mismatch  Reason = "mismatch"   // key and certificate do not belong together
	TooOpen   Reason = "too open"   // group or others may use it
	Owner     Reason = "other owner"
	NotPlain  Reason = "not plain" // a symbolic link, a pipe, a folder in the place of a file
	TooLong   Reason = "too long"
	NoSystem  Reason = "no such check" // this system cannot tell who may read a file
)

// A FileError says which file is refused, and why.
type FileError struct {
	Path   string
	Reason Reason
	Detail string // what was found, or what to do
}

func (e *FileError) Error() string {
	return fmt.Sprintf("certificate authority %s refused (%s): %s", e.Path, e.Reason, e.Detail)
}

// Read describes the authorities in a folder without making any. The error matches
// fs.ErrNotExist if there are none.
func Read(dir string, now time.Time) ([]State, error) {
	s, err := (&folder{path: dir}).read()
	if err != nil {
		return nil, err
	}
	return s.states(now), nil
}

// A folder keeps authorities in a file.
type folder struct{ path string }

func (f *folder) file() string { return filepath.Join(f.path, fileName) }

func (f *folder) read() (*signers, error) {
	if err := checkFolder(f.path); err != nil {
		return nil, err
	}
	file, err := openPrivate(f.file())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the certificate authority: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	case len(text) > maxFile:
		return nil, &FileError{f.file(), TooLong, fmt.Sprintf("it has over %d bytes", maxFile)}
	}
	list, err := decode(f.file(), text)
	if err != nil {
		return nil, err
	}
	return &signers{list: list, stamp: info}, nil
}

// readIfChanged returns old if the file is still the one that it was read from.
func (f *folder) readIfChanged(old *signers) (*signers, error) {
	info, err := os.Stat(f.file())
	if err != nil {
		return nil, fmt.Errorf("look at the certificate authority: %w", err)
	}
	if o := old.stamp; os.SameFile(info, o) && info.ModTime().Equal(o.ModTime()) && info.Size() == o.Size() && info.Mode() == o.Mode() {
		return old, nil
	}
	return f.read()
}

// readOrMake lets first make what is not there. Of processes that do so at once one
// makes it and the others read it.
func (f *folder) readOrMake(first func() (*signers, error)) (*signers, error) {
	s, err := f.read()
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err = os.MkdirAll(f.path, 0o700); err == nil {
		err = syncFolder(filepath.Dir(f.path))
	}
	if err != nil {
		return nil, fmt.Errorf("make the folder of the certificate authority: %w", err)
	}
	unlock, err := f.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	s, err = f.read()
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if s, err = first(); err != nil {
		return nil, err
	}
	return f.write(s.list)
}

// update reads, edits and writes under the lock.
func (f *folder) update(edit func(*signers) ([]*signer, error)) (*signers, error) {
	unlock, err := f.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	s, err := f.read()
	if err != nil {
		return nil, err
	}
	list, err := edit(s)
	if err != nil {
		return nil, err
	}
	return f.write(list)
}

// lock keeps other processes from changing the file. The caller unlocks.
func (f *folder) lock() (unlock func(), err error) {
	if err := checkFolder(f.path); err != nil {
		return nil, err
	}
	return lockFile(filepath.Join(f.path, lockName))
}

// write replaces the file, under the lock, and reads it back: what cannot be read
// again must not be found out at the next start.
func (f *folder) write(list []*signer) (*signers, error) {
	text, err := encode(list)
	if err != nil {
		return nil, err
	}
	if err := f.removeLeftovers(); err != nil {
		return nil, err
	}
	if err := replaceFile(f.file(), text, 0o600); err != nil {
		return nil, fmt.Errorf("write the certificate authority: %w", err)
	}
	return f.read()
}

// removeLeftovers removes what a process that was killed while it wrote has left: it
// holds keys.
func (f *folder) removeLeftovers() error {
	left, err := filepath.Glob(filepath.Join(escapeGlob(f.path), tempPattern(fileName)))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// escapeGlob makes a path match itself only.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func tempPattern(name string) string { return "." + name + "-*" }

// replaceFile writes a file as a whole or not at all, also if power is lost.
func replaceFile(path string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), tempPattern(filepath.Base(path))) // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil && mode != 0o600 {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to tell
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// A savedFile is what the file holds.
type savedFile struct {
	Format      string        `json:"format"`
	Authorities []savedSigner `json:"authorities"` // the oldest first
}

type savedSigner struct {
	Certificate string     `json:"certificate"` // PEM
	Key         string     `json:"key"`         // PEM, PKCS #8
	SignsFrom   *time.Time `json:"signs_from"`  // null: when it is told to
}

func encode(list []*signer) ([]byte, error) {
	saved := savedFile{Format: fileFormat}
	for _, s := range list {
		der, err := x509.MarshalPKCS8PrivateKey(s.key)
		if err != nil {
			return nil, fmt.Errorf("encode the key: %w", err)
		}
		each := savedSigner{Certificate: string(PEM(s.cert)), Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))}
		if !s.from.IsZero() {
			from := s.from.UTC()
			each.SignsFrom = &from
		}
		saved.Authorities = append(saved.Authorities, each)
	}
	text, err := json.MarshalIndent(saved, "", "  ")
	return append(text, '\n'), err
}

// decode reads a file's content. Its errors never hold any of it.
func decode(path string, text []byte) ([]*signer, error) {
	var saved savedFile
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&saved); err != nil {
		if !bytes.Contains(text[:min(len(text), 100)], []byte(fileFormat)) {
			return nil, &FileError{path, OtherKind, "it does not begin as a file of ours"}
		}
		return nil, &FileError{path, Damaged, "it was cut or changed: put it back from a copy, or remove it and have the new authority trusted"}
	}
	if saved.Format != fileFormat {
		return nil, &FileError{path, OtherKind, fmt.Sprintf("its format is not %q", fileFormat)}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, &FileError{path, Damaged, "something follows its end"}
	}
	if n := len(saved.Authorities); n == 0 || n > maxSigners {
		return nil, &FileError{path, Damaged, fmt.Sprintf("it holds %d authorities, not 1 to %d", n, maxSigners)}
	}
	var list []*signer
	for i, each := range saved.Authorities {
		s, err := each.signer(path)
		if err != nil {
			return nil, err
		}
		if i > 0 && (list[i-1].from.IsZero() || !s.from.IsZero() && !s.from.After(list[i-1].from)) || i == 0 && s.from.IsZero() {
			return nil, &FileError{path, Damaged, "its authorities do not follow one another in time"}
		}
		list = append(list, s)
	}
	return list, nil
}

func (saved savedSigner) signer(path string) (*signer, error) {
	der, err := onlyBlock(saved.Certificate, "CERTIFICATE")
	if err != nil {
		return nil, &FileError{path, Damaged, "a certificate in it " + err.Error()}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, &FileError{path, Damaged, "a certificate in it cannot be read"}
	}
	if err := checkAuthority(cert); err != nil {
		return nil, &FileError{path, OtherKind, "a certificate in it " + err.Error()}
	}
	if der, err = onlyBlock(saved.Key, "PRIVATE KEY"); err != nil {
		return nil, &FileError{path, Damaged, "a key in it " + err.Error()}
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, &FileError{path, Damaged, "a key in it cannot be read"}
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, &FileError{path, OtherKind, "a key in it is not for ECDSA with P-256"}
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, &FileError{path, Mismatch, "a key in it is not that of its certificate"}
	}
	s := &signer{cert: cert, key: key}
	if saved.SignsFrom != nil {
		s.from = *saved.SignsFrom
	}
	return s, nil
}

// checkAuthority accepts only what newSigner makes: a certificate without constraints
// could sign for any host.
func checkAuthority(cert *x509.Certificate) error {
	switch {
	case !slices.Equal(cert.Subject.Organization, []string{organisation}):
		return errors.New("is not one of Warmwire's")
	case !cert.IsCA || !cert.MaxPathLenZero || cert.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign:
		return errors.New("is no authority that signs hosts only")
	case !cert.PermittedDNSDomainsCritical || len(cert.PermittedDNSDomains) == 0 || len(cert.PermittedIPRanges)+len(cert.ExcludedIPRanges) == 0:
		return errors.New("has no name constraints")
	case len(cert.SubjectKeyId) == 0:
		return errors.New("has no key identifier")
	case cert.CheckSignatureFrom(cert) != nil:
		return errors.New("has not signed itself")
	}
	for _, name := range cert.PermittedDNSDomains {
		if checkName(name) != nil { // among them "", which permits all
			return errors.New("permits what is no host")
		}
	}
	return nil
}

// onlyBlock reads text that is one PEM block and nothing else.
func onlyBlock(text, kind string) ([]byte, error) {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != kind || len(block.Headers) != 0 || len(rest) != 0 || !strings.HasPrefix(text, "-----BEGIN "+kind) {
		return nil, fmt.Errorf("is not one PEM block %s", kind)
	}
	return block.Bytes, nil
}
