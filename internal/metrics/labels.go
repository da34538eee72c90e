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
type labels struct{ mode, protocol, outcome, cause, reason, malformed, kind, verdict, result, distrust, attempt, decision, resumed, side, api, warning, intercept, class, denial, fault, endpointResult, ejection, signal, export set }

func newLabels() labels {
	return labels{
		mode:     newSet("base_url", "host", "forward", "tunnel", "intercept", "websocket"),
		protocol: newSet("HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/3.0"),
		outcome:  newSet("ok", "upstream_error", "refused", "cut_upstream", "cut_app", "cut_warmwire"),
		kind:     newSet("full", "resumed", "0-rtt", "failed"),
		verdict:  newSet("alive", "thinking", "doubtful", "path_down", "dead_flow"),
		result:   newSet("hit", "stale", "miss", "hosts", "negative", "error"),
		distrust: newSet("unknown_root", "missing_intermediate", "self_signed", "expired", "not_yet_valid", "wrong_name", "revoked",
			"staple_stale", "staple_missing", "staple_invalid", "pin_mismatch", "weak", other),
		attempt: newSet("unsent", "refused", "try_later", "answered", "cut_before", "cut_after", "late", "hopeless", "unknown", "slow"),
		side:    newSet("app", "upstream", "spare"),
		class:   newSet("interactive", "default", "batch"),
		api:     newSet("openai_realtime", "openai_responses", "gemini_live"),
		warning: newSet("clock", "announced", "go_away", "expired"),
		resumed: newSet("resumed", "failed", "refused", "too_large", "no_memory", "app_gone"),
		decision: newSet("retried", "disabled", "forbidden", "exhausted", "budget", "not_replayable", "too_long", "deadline", "app_gone",
			"hedged", "hedge_won", "hedge_lost"),
		endpointResult: newSet("ok", "error", "connect", "stall", "left"),
		ejection:       newSet("error", "connect", "stall", "slow", "probe"),
		intercept:      newSet("intercepted", "plain", "no_tls", "other_name", "other_protocol", "learned", "no_certificate", "untrusted", "left", "failed"),
		fault:          newSet("slow_provider", "network", "slow_reader", "buffering_hop"),
		signal:         newSet("traces", "metrics"),
		export:         newSet("exported", "rejected", "failed", "dropped", "retried"),
		denial:         denials(),
		cause:          causes(),
		reason:         reasons(),
		malformed:      malformedCodes(),
	}
}

// causes of interruptions: those of the relay, then the codes that an error of
// the way out brings along when it breaks off an answer.
func causes() set {
	return newSet("app_left", "app_upload_truncated", "buffer_stalled", "error_event", "first_token_timeout", "idle_timeout", "internal_error", "missing_terminal", "overloaded", "quota_upload",
		"request_body_too_large", "total_timeout", "upstream_reset", "upstream_truncated", "warmwire_drain", "websocket_dropped",

		"loop", "parent_proxy_failed", "parent_proxy_refused", "target_denied", "upstream_bad_handshake", "upstream_bad_response", "upstream_closed",
		"upstream_connect_failed", "upstream_connect_refused", "upstream_connect_timeout", "upstream_dead_flow", "upstream_dns_failed", "upstream_dns_timeout",
		"tenant_over_share", "upstream_failed", "upstream_header_too_large", "upstream_limit_paced", "upstream_limit_queue_full", "upstream_limit_queue_timeout", "upstream_protocol_error", "upstream_queue_full", "upstream_queue_timeout", "upstream_request_write_timeout",
		"upstream_response_header_timeout", "upstream_tls_client_certificate", "upstream_tls_expired", "upstream_tls_failed", "upstream_tls_timeout", "upstream_tls_untrusted",
		"upstream_tls_wrong_name", "upstream_unreachable")
}

// reasons of refusals by policy.
func reasons() set {
	return newSet("bad_connect_target", "bad_priority", "bad_request_target", "bad_websocket_handshake", "caller_unknown", "connections", "cross_site_request", "foreign_origin",
		"forward_denied", "host_not_allowed", "loop_detected", "not_permitted", "origin_not_allowed", "quota_output_tokens", "quota_requests", "quota_streams", "quota_upload", "token_required", "unknown_host", "unknown_upstream",
		"unsupported_protocol", "unsupported_scheme", "user_not_allowed")
}

// malformedCodes are what the HTTP/1 reader refuses.
func malformedCodes() set {
	return newSet("ambiguous_length", "bad_chunk", "bad_connect_target", "bad_content_length", "bad_field_name", "bad_field_value", "bad_host",
		"bad_method", "bad_request_line", "bad_target", "bad_transfer_encoding", "bad_version", "bare_lf", "header_timeout", "header_too_large",
		"missing_host", "repeated_host", "request_line_too_long", "tls_on_plain_port", "trailer_too_large", "transfer_encoding_http10",
		"unknown_expectation", "unsupported_transfer_coding", "unsupported_version")
}
