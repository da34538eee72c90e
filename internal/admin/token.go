// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	tokenBytes    = 32
	minTokenChars = 32   // an own token of an operator is at least as long as 24 random bytes in base64
	maxTokenChars = 4096 // guess: below what servers take in one header field
)

// LoadOrCreateToken returns the token in the file at path. A file that does not
// exist is created, mode 0600, with 32 random bytes in base64url; of several
// processes that do so at once, all get the same token. A file that others than
// its owner can read, that belongs to another user (root's are fine), or that
// holds no whole token is an error that says what to do: it is never replaced.
func LoadOrCreateToken(path string) (string, error) {
	token, err := loadToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := createToken(path); err != nil {
		return "", fmt.Errorf("create token file: %w", err)
	}
	return loadToken(path)
}

func loadToken(path string) (string, error) {
	// Looked at before it is opened, because opening a pipe waits for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("token file %s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	if err := checkOwner(info); err != nil {
		return "", fmt.Errorf("token file %s: %w", path, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokenChars+2))
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if err := checkToken(token); err != nil {
		return "", fmt.Errorf("token file %s: %w; remove the file to get a new token", path, err)
	}
	return token, nil
}

// checkToken accepts the b64token of RFC 6750 §2.1, which fits in a header field.
func checkToken(token string) error {
	switch {
	case token == "":
		return errors.New("the file is empty")
	case len(token) < minTokenChars:
		return fmt.Errorf("the token has %d characters, want at least %d", len(token), minTokenChars)
	case len(token) > maxTokenChars:
		return fmt.Errorf("the token has more than %d characters", maxTokenChars)
	}
	for _, c := range []byte(strings.TrimRight(token, "=")) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~+/", c) >= 0:
		default:
			return errors.New("the file is damaged: want one line of letters, digits and -._~+/")
		}
	}
	return nil
}

// createToken writes the file under another name and links it into place, which
// fails if there is one: a reader never sees half a token, and the first of
// several writers wins.
func createToken(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".token-*") // O_EXCL, 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	raw := make([]byte, tokenBytes)
	rand.Read(raw) // never fails (crypto/rand)
	_, err = f.WriteString(base64.RawURLEncoding.EncodeToString(raw) + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; set admin.token_file to a file on a local disk", err)
	}
	return nil
}
