// SPDX-License-Identifier: Apache-2.0

// Package metrics is the only one that knows the metrics library. It counts what
// others report and serves the page that Prometheus reads.
//
// It refuses open label sets: every label value comes from a list in this package
// or is the name of a configured upstream; anything else becomes "other". Paths,
// models, hosts of tunnels and keys are never labels.
//
// It starts nothing and has a registry of its own. All methods are safe for
// concurrent use.
package metrics
