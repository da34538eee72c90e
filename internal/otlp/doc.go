// SPDX-License-Identifier: Apache-2.0

// Package otlp speaks OTLP/HTTP, the protocol of OpenTelemetry (version 1.9.0): spans
// and histograms in protobuf or JSON, compressed, and what the collector answers.
//
// It has what Warmwire exports and nothing else of the protocol: no logs, no links, no
// gRPC. It does not retry, wait, log or keep anything: a [Target] sends one message and
// says what became of it. What a collector writes in its answers is never handed on,
// because it may quote what it was sent; only numbers are.
//
// An answer is read up to 64 KiB. A Target is safe for concurrent use.
package otlp
