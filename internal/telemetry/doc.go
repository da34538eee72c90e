// SPDX-License-Identifier: Apache-2.0

// Package telemetry exports what finished requests showed to an OpenTelemetry collector:
// a span for each that is traced, and the client metrics of the GenAI semantic
// conventions, in the version that [SchemaURL] names.
//
// A span continues the trace of an app that records it; requests of apps that sent no
// traceparent get a trace of their own, a share of them. Nothing of a request's fields,
// body, query or path is in either: names are those of the configuration and of closed
// sets. So there is no gen_ai.request.model, which stands in bodies and paths.
//
// No request waits. Spans wait in a queue of 2048 places, each charged to the process's
// memory budget; what finds no room is dropped and counted. One goroutine, [Exporter.Run],
// sends batches, tries again what a collector may still take, for a minute at most, and
// empties the queue at the end for as long as its flush timeout. Metrics are cumulative
// and survive a collector's absence; there are at most 1000 series of each.
//
// All methods are safe for concurrent use.
package telemetry
