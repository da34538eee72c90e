// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"strings"
	"testing"
	"time"
)

func TestRealtimeAPIsAreToldByTheirPath(t *testing.T) {
	const live = "/ws/google.ai.generativelanguage."
	tests := []struct {
		kind Kind
		path string
		want Realtime
	}{
		{OpenAI, "/v1/realtime", OpenAIRealtime},
		{OpenAI, "/v1/realtime?model=gpt-realtime", OpenAIRealtime},
		{OpenAI, "/openai/v1/realtime/", OpenAIRealtime}, // Azure
		{OpenAI, "/v1/responses", OpenAIResponses},
		{OpenAI, "/v1/chat/completions", NoRealtime},
		{OpenAI, "/v1/realtime/calls", NoRealtime},
		{None, "/v1/realtime", NoRealtime},
		{Anthropic, "/v1/realtime", NoRealtime},
		{Gemini, live + "v1beta.GenerativeService.BidiGenerateContent", GeminiLive},
		{Gemini, live + "v1alpha.GenerativeService.BidiGenerateContent?key=k", GeminiLive},
		{Gemini, "/" + live + "v1alpha.GenerativeService.BidiGenerateContentConstrained", GeminiLive},
		{Gemini, "/ws/google.cloud.aiplatform.v1beta1.LlmBidiService/BidiGenerateContent", GeminiLive},
		{Gemini, live + "v1beta.GenerativeService.BidiGenerateMusic", NoRealtime},
		{Gemini, "/v1/realtime", NoRealtime},
		{OpenAI, live + "v1beta.GenerativeService.BidiGenerateContent", NoRealtime},
	}
	for _, tt := range tests {
		if got := DetectRealtime(tt.kind, tt.path); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.kind, tt.path, got, tt.want)
		}
	}
}

func TestOnlyOpenAISaysBeforehandHowLong(t *testing.T) {
	for api, want := range map[Realtime]time.Duration{OpenAIRealtime: time.Hour, OpenAIResponses: time.Hour, GeminiLive: 0, NoRealtime: 0} {
		if got := api.Limit(); got != want {
			t.Errorf("%q: %v, want %v", api, got, want)
		}
	}
}

// messages of servers, and what they tell.
var notices = []struct {
	name    string
	api     Realtime
	message string
	want    Notice // Kind 0 = nothing
}{
	{"session.created", OpenAIRealtime, `{"type":"session.created","event_id":"event_1","session":{"type":"realtime","object":"realtime.session","id":"sess_1","tools":[{"a":{"expires_at":7}}],"instructions":"\"expires_at\":8","expires_at":1756324832,"tracing":null}}`, Notice{Kind: Expires, At: time.Unix(1756324832, 0)}},
	{"in any order", OpenAIRealtime, "{ \"event_id\" : \"e\",\n \"session\" : { \"expires_at\" : 99 } , \"type\" : \"session.updated\" }", Notice{Kind: Expires, At: time.Unix(99, 0)}},
	{"no end", OpenAIRealtime, `{"type":"session.created","session":{"expires_at":null}}`, Notice{}},
	{"end 0", OpenAIRealtime, `{"type":"session.created","session":{"expires_at":0}}`, Notice{}},
	{"expired", OpenAIRealtime, `{"type":"error","event_id":"event_1","error":{"type":"invalid_request_error","code":"session_expired","message":"Your session hit the maximum duration of 60 minutes.","param":null,"event_id":null}}`, Notice{Kind: Expired}},
	{"another error", OpenAIRealtime, `{"type":"error","error":{"type":"invalid_request_error","code":"invalid_event","message":"session_expired"}}`, Notice{}},
	{"another event with a session", OpenAIRealtime, `{"session":{"expires_at":99},"type":"conversation.item.added"}`, Notice{}},
	{"text of a model", OpenAIRealtime, `{"type":"response.output_text.delta","delta":"{\"type\":\"error\",\"error\":{\"code\":\"session_expired\"}}"}`, Notice{}},
	{"Responses", OpenAIResponses, `{"type":"error","status":400,"error":{"type":"invalid_request_error","code":"websocket_connection_limit_reached","message":"m","param":null}}`, Notice{Kind: Expired}},
	{"goAway", GeminiLive, "{\n  \"goAway\": {\n    \"timeLeft\": \"49.5s\"\n  }\n}\n", Notice{Kind: GoAway, Left: 49500 * time.Millisecond}},
	{"goAway behind usage", GeminiLive, `{"usageMetadata":{"totalTokenCount":7,"promptTokensDetails":[{"modality":"AUDIO"}]},"goAway":{"timeLeft":"10s"}}`, Notice{Kind: GoAway, Left: 10 * time.Second}},
	{"goAway of nothing", GeminiLive, `{"goAway":{}}`, Notice{Kind: GoAway, Left: -1}},
	{"goAway of nonsense", GeminiLive, `{"goAway":{"timeLeft":"soon"}}`, Notice{Kind: GoAway, Left: -1}},
	{"goAway of less than nothing", GeminiLive, `{"goAway":{"timeLeft":"-3s"}}`, Notice{Kind: GoAway, Left: -1}},
	{"a handle", GeminiLive, `{"sessionResumptionUpdate":{"newHandle":"SECRET","resumable":true}}`, Notice{Kind: Resumable, Resumable: true}},
	{"a handle behind", GeminiLive, `{"sessionResumptionUpdate":{"resumable":true,"lastConsumedClientMessageIndex":"3","newHandle":"SECRET"}}`, Notice{Kind: Resumable, Resumable: true}},
	{"not now", GeminiLive, `{"sessionResumptionUpdate":{"newHandle":"","resumable":false}}`, Notice{Kind: Resumable}},
	{"nothing of it", GeminiLive, `{"sessionResumptionUpdate":{}}`, Notice{Kind: Resumable}},
	{"text of another model", GeminiLive, `{"serverContent":{"modelTurn":{"parts":[{"text":"\"goAway\":{\"timeLeft\":\"1s\"}"}]}},"goAway":{"timeLeft":"1s"}}`, Notice{}},
	{"setup", GeminiLive, `{"setupComplete":{}}`, Notice{}},
	{"OpenAI's to Gemini", GeminiLive, `{"type":"error","error":{"code":"session_expired"}}`, Notice{}},
	{"Gemini's to OpenAI", OpenAIRealtime, `{"goAway":{"timeLeft":"1s"}}`, Notice{}},
	{"no API", NoRealtime, `{"goAway":{"timeLeft":"1s"}}`, Notice{}},
	{"nothing", GeminiLive, "", Notice{}},
	{"audio", GeminiLive, "\x00\x01\x02\xff", Notice{}},
	{"a list", OpenAIRealtime, `["type"]`, Notice{}},
}

func TestNoticesOfServers(t *testing.T) {
	for _, tt := range notices {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.api.Read([]byte(tt.message))
			if got != tt.want || ok != (tt.want.Kind != 0) {
				t.Errorf("%+v %v, want %+v", got, ok, tt.want)
			}
		})
	}
}

// TestAModelsOutputCostsNoMemory reads what most messages are.
func TestAModelsOutputCostsNoMemory(t *testing.T) {
	audio := strings.Repeat("A", 3000)
	for api, message := range map[Realtime]string{
		OpenAIRealtime: `{"event_id":"event_1","type":"response.output_audio.delta","delta":"` + audio + `"}`,
		GeminiLive:     `{"serverContent":{"modelTurn":{"parts":[{"inlineData":{"data":"` + audio + `"}}]}}}`,
	} {
		b := []byte(message)
		if n := testing.AllocsPerRun(100, func() { api.Read(b) }); n != 0 {
			t.Errorf("%s: %v allocations", api, n)
		}
	}
}

func BenchmarkRealtimeRead(b *testing.B) {
	audio := strings.Repeat("A", 3000)
	for api, message := range map[Realtime]string{
		OpenAIRealtime: `{"type":"response.output_audio.delta","event_id":"event_1","delta":"` + audio + `"}`,
		GeminiLive:     `{"serverContent":{"modelTurn":{"parts":[{"inlineData":{"data":"` + audio + `"}}]}}}`,
	} {
		b.Run(string(api), func(b *testing.B) {
			p := []byte(message)
			for b.Loop() {
				api.Read(p)
			}
		})
	}
}

// FuzzRealtimeRead looks for messages that it does not survive, or that it does not
// leave alone.
func FuzzRealtimeRead(f *testing.F) {
	for _, n := range notices {
		f.Add(n.message, uint16(len(n.message)/2))
	}
	f.Fuzz(func(t *testing.T, message string, cut uint16) {
		for _, api := range []Realtime{OpenAIRealtime, OpenAIResponses, GeminiLive, NoRealtime} {
			b := []byte(message)
			n, ok := api.Read(b)
			if string(b) != message {
				t.Error("altered")
			}
			if ok != (n.Kind != 0) || n.Kind == GoAway && n.Left < -1 || n.Kind == Expires && n.At.Unix() <= 0 {
				t.Errorf("%+v %v", n, ok)
			}
			api.Read(b[:min(int(cut), len(b))])
		}
	})
}
