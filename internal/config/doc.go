// SPDX-License-Identifier: Apache-2.0

// Package config reads the one configuration file: YAML, strict, every key
// optional. It reports all problems at once, each with file, line and key, and
// what to do about it.
//
// It opens no socket and starts nothing; the only files it looks at are the
// configuration itself and whether those that it names exist. What it returns is
// plain data for others.
package config
