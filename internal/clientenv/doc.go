// SPDX-License-Identifier: Apache-2.0

// Package clientenv knows by which environment variables programs are sent through
// a proxy and told whom to trust, and which program heeds which.
//
// [Way.Variables] returns what one environment needs besides what it has, and
// writes the files that the variables name: bundles of certificates, a trust store
// for Java, and a hook for those Node.js releases whose fetch knows no proxy.
// [Examine] says what is wrong with an environment, [Write] prints variables for a
// shell.
//
// What a user has set is kept wherever both can hold: certificates are joined,
// NO_PROXY, NODE_OPTIONS and JAVA_TOOL_OPTIONS are added to, and a base URL that
// leads elsewhere stays. The same holds for variables of an earlier call, so that
// an environment may be made anew at any time.
//
// It refuses to read the environment itself (its callers hand it in), to use the
// network, and to write a private key. It keeps no state. All functions are safe
// for concurrent use; files are replaced as a whole. A file that a variable names
// is read up to 16 MiB.
package clientenv
