// SPDX-License-Identifier: Apache-2.0

// Package truststore makes a machine trust a certificate of ours, and no longer trust
// it.
//
// A [Machine] finds the system's store (Debian's way, that of Fedora and RHEL, of
// Arch, of openSUSE, the keychain of macOS) and the databases of the user's browsers
// (NSS: Chromium and Firefox on Linux, Firefox on macOS). [Machine.Install] and
// [Machine.Uninstall] plan: they look and change nothing. What is to be done is a list
// of commands, to be shown before they are run by [Machine.Do].
//
// Ours are known by name: warmwire- and the beginning of the SHA-256 of the certificate.
// Those that are there already, or not there, need no command.
//
// It refuses: to become root (such commands are marked and left to the caller), to
// make a database that a browser has not made, and to touch a certificate that is not
// Warmwire's. Programs that bring their own roots, as Node, Java and Python's certifi
// do, are not reached in this way.
//
// A Machine keeps no state. Its methods are safe for concurrent use.
package truststore
