// SPDX-License-Identifier: Apache-2.0

package metrics

// other stands for every value outside its set.
const other = "other"

// A set is the closed set of one label's values.
type set map[string]bool

func newSet(values ...string) set {
	s := make(set, len(values))
	for _, v := range values {
		s[v] = true
	}
	return s
}

func (s set) of(v string) string {
	if s[v] {
		return v
	}
	return other
}

// labels are the closed sets; upstream names come from the configuration.
type labels struct{ mode, protocol, outcome, cause, reason, malformed, kind set }

func newLabels() labels {
	return labels{
		mode:     newSet("base_url", "host", "forward", "tunnel", "websocket"),
		protocol: newSet("HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "h2", "http/1.1"),
		outcome:  newSet("ok", "upstream_error", "refused", "cut_upstream", "cut_app", "cut_warmwire"),
		kind:     newSet("full", "resumed", "failed"),
		cause: newSet("app_left", "upstream_truncated", "upstream_reset", "idle_timeout", "first_token_timeout", "total_timeout",
			"warmwire_drain", "missing_terminal", "error_event", "request_body_too_large", "internal_error", "app_upload_truncated",
			"websocket_dropped", "upstream_protocol_error", "upstream_closed", "upstream_request_write_timeout"),
		reason: newSet("unknown_host", "unknown_upstream", "bad_request_target", "unsupported_scheme", "forward_denied", "bad_connect_target",
			"loop_detected", "token_required", "user_not_allowed", "host_not_allowed", "origin_not_allowed", "cross_site_request",
			"bad_websocket_handshake", "connections"),
		malformed: newSet("ambiguous_length", "bad_chunk", "bad_connect_target", "bad_content_length", "bad_field_name", "bad_field_value",
			"bad_host", "bad_method", "bad_request_line", "bad_target", "bad_transfer_encoding", "bad_version", "bare_lf", "header_timeout",
			"header_too_large", "missing_host", "repeated_host", "request_line_too_long", "tls_on_plain_port", "trailer_too_large",
			"unknown_expectation", "unsupported_transfer_coding", "unsupported_version"),
	}
}
