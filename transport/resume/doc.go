// SPDX-License-Identifier: Apache-2.0

// Package resume continues Responses streams that break, without the app noticing:
// a layer around an [http.RoundTripper].
//
// It is meant for one kind of stream only: the answer to POST …/responses, 200,
// text/event-stream without a coding and of unknown length, whose first event is
// response.created of a response with background and store set. The server keeps such
// a response and its events, and GET …/responses/{id}?stream=true&starting_after=N
// sends those after number N. When the stream breaks, or ends without a terminal
// event, that is asked for, with the same query and fields but for those of a body.
// The request's body is never looked at.
//
// Events pass as the bytes that the server sent, and whole: half an event that the
// app has could not be continued. So a stream of this kind is a copy later than
// others, and an event is held until its end has come. Each sequence number passes
// once, in order. Events of a continued stream that the app has already are left
// out; a continuation that leaves some out is no continuation.
//
// It refuses to invent: where a stream cannot be continued, the break is passed on as
// it came, with the half event before it. That is so inside of the first event, after
// an event longer than [MaxEvent], or than the budget has room for (what follows passes as it comes), after an event
// of an error, when the server does not know the response any more, and after
// MaxAttempts in a row that brought no new event. After the terminal event a clean end
// is the end; a break there is mended as any other, so that the end is the server's.
// All other streams pass untouched, read by the app's own buffer.
//
// [New] starts nothing, and there are no goroutines: a Read of the body continues the
// stream. Close of the body, or the end of the request's context, ends all at once.
// A Transport is safe for concurrent use; a body as bodies are: one Read at a time,
// and Close at any time.
package resume
