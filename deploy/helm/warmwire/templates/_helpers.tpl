{{- define "warmwire.name" -}}
{{- if contains "warmwire" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-warmwire" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "warmwire.selector" -}}
app.kubernetes.io/name: warmwire
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmwire.labels" -}}
{{ include "warmwire.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "warmwire.tokenSecret" -}}
{{ .Values.tokenSecret | default (printf "%s-token" (include "warmwire.name" .)) }}
{{- end }}

{{- define "warmwire.config" -}}
{{- if eq .Values.mode "node" }}
listen:
  address: 0.0.0.0:{{ .Values.port }}
  token: ${WARMWIRE_TOKEN}
  allow_hosts: ['${NODE_IP}']
admin:
  address: 0.0.0.0:{{ .Values.adminPort }}
{{- else }}
listen:
  address: unix:{{ .Values.socketDir }}/proxy.sock
admin:
  address: unix:{{ .Values.socketDir }}/admin.sock
{{- end }}
drain:
{{ toYaml .Values.drain | indent 2 }}
{{- $config := .Values.config }}
{{- if not (hasKey $config "dns") }}
dns:
  cache_file: none # the root file system is read-only
{{- end }}
{{- with $config }}
{{ toYaml . }}
{{- end }}
{{- end }}
