// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"net/http"
)

// ErrorBody is an error of our own in the shape that the dialect's SDKs read.
func ErrorBody(k Kind, status int, code, message string) []byte {
	var v any
	switch k {
	case Anthropic:
		v = map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(status), "code": code, "message": message}}
	case Gemini:
		v = map[string]any{"error": map[string]any{"code": status, "message": message, "status": geminiStatus(status),
			"details": []any{map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "warmwire"}}}}
	default:
		v = map[string]any{"error": map[string]any{"message": message, "type": "warmwire_error", "param": nil, "code": code}}
	}
	return encode(v)
}

// ErrorEvent is the same as one whole event of a stream.
func ErrorEvent(k Kind, path, code, message string) []byte {
	body := ErrorBody(k, http.StatusBadGateway, code, message)
	name := ""
	switch {
	case k == Anthropic:
		name = "event: error\n"
	case k == OpenAI && Detect(path) == Responses:
		name = "event: error\n"
		body = encode(map[string]any{"type": "error", "code": code, "message": message, "param": nil,
			"error": map[string]any{"type": "warmwire_error", "code": code, "message": message, "param": nil}})
	}
	return append(append([]byte(name+"data: "), body...), "\n\n"...)
}

// encode cannot fail: the values are maps of strings and numbers.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return b
}

func anthropicType(status int) string {
	switch status {
	case 400:
		return "invalid_request_error"
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 504:
		return "timeout_error"
	}
	return "api_error"
}

func geminiStatus(status int) string {
	switch status {
	case 400:
		return "INVALID_ARGUMENT"
	case 401:
		return "UNAUTHENTICATED"
	case 403:
		return "PERMISSION_DENIED"
	case 404:
		return "NOT_FOUND"
	case 429:
		return "RESOURCE_EXHAUSTED"
	case 502, 503:
		return "UNAVAILABLE"
	case 504:
		return "DEADLINE_EXCEEDED"
	}
	return "INTERNAL"
}
