// SPDX-License-Identifier: Apache-2.0

// Package dnscache answers names from the machine's hosts file: every entry,
// both families, aliases, and changes within 5 s; and reads resolv.conf. It asks
// no resolver. A hosts file
// that is too large is refused and the last good reading kept. Nothing is
// started and nothing has to be stopped; all methods may be called concurrently.
package dnscache
