{{- define "dispatcher.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "dispatcher.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "dispatcher.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What all pods of the release have in common. */ -}}
{{- define "dispatcher.selector" -}}
app.kubernetes.io/name: {{ include "dispatcher.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dispatcher.labels" -}}
{{ include "dispatcher.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: trainmaster
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "dispatcher.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The Secret with the addresses that are not in Secrets of their own, and the passwords of the bundled stores. */ -}}
{{- define "dispatcher.storesSecret" -}}
{{- include "dispatcher.fullname" . }}-stores
{{- end -}}

{{- define "dispatcher.adminSecret" -}}
{{- with .Values.adminKey.existingSecret -}}{{ .name }}{{- else -}}{{ include "dispatcher.fullname" . }}-admin-key{{- end -}}
{{- end -}}

{{- define "dispatcher.adminSecretKey" -}}
{{- with .Values.adminKey.existingSecret -}}{{ .key }}{{- else -}}key{{- end -}}
{{- end -}}

{{- /* The environment that leads to Postgres. */ -}}
{{- define "dispatcher.databaseEnv" -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      {{- with .Values.postgresql.existingSecret }}
      name: {{ .name }}
      key: {{ .key }}
      {{- else }}
      name: {{ include "dispatcher.storesSecret" . }}
      key: DATABASE_URL
      {{- end }}
{{- end -}}

{{- /* The settings of a process, beside the ConfigMap. */ -}}
{{- define "dispatcher.env" -}}
{{ include "dispatcher.databaseEnv" . }}
- name: REDIS_URL
  valueFrom:
    secretKeyRef:
      {{- with .Values.redis.existingSecret }}
      name: {{ .name }}
      key: {{ .key }}
      {{- else }}
      name: {{ include "dispatcher.storesSecret" . }}
      key: REDIS_URL
      {{- end }}
{{- with .Values.tracing }}
{{- if .endpoint }}
{{ include "dispatcher.tracingEnv" . }}
{{- end }}
{{- end }}
{{- with .Values.webhooks }}
{{- if or .secret .existingSecret }}
- name: TRAINMASTER_WEBHOOK_SECRET
  valueFrom:
    secretKeyRef:
      {{- if .existingSecret }}
      name: {{ .existingSecret.name }}
      key: {{ .existingSecret.key }}
      {{- else }}
      name: {{ include "dispatcher.fullname" $ }}-webhooks
      key: secret
      {{- end }}
{{- end }}
{{- end }}
{{- with .Values.mail }}
{{- if or .url .existingSecret }}
- name: TRAINMASTER_SMTP_URL
  valueFrom:
    secretKeyRef:
      {{- if .existingSecret }}
      name: {{ .existingSecret.name }}
      key: {{ .existingSecret.key }}
      {{- else }}
      name: {{ include "dispatcher.fullname" $ }}-mail
      key: url
      {{- end }}
- name: TRAINMASTER_MAIL_FROM
  value: {{ .from | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Traces, by the variables of OpenTelemetry. */ -}}
{{- define "dispatcher.tracingEnv" -}}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .endpoint | quote }}}
{{- with .sampler }}
- {name: OTEL_TRACES_SAMPLER, value: {{ . | quote }}}
{{- end }}
{{- with .samplerArgument }}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ . | quote }}}
{{- end }}
{{- with .resourceAttributes }}
{{- $pairs := list }}
{{- range $name, $value := . }}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) }}
{{- end }}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ join "," $pairs | quote }}}
{{- end }}
{{- with .headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef: {name: {{ .name }}, key: {{ .key }}}
{{- end }}
{{- end -}}

{{- /* The port of the receiver of traces. */ -}}
{{- define "dispatcher.tracingPort" -}}
{{- $url := urlParse .endpoint -}}
{{- $port := regexFind ":[0-9]+$" $url.host -}}
{{- if $port }}{{ trimPrefix ":" $port }}{{ else if eq $url.scheme "https" }}443{{ else }}80{{ end }}
{{- end -}}

{{- /* Where the certificates of the authority of the OpenID Connect issuer are mounted. */ -}}
{{- define "dispatcher.issuerCertificates" -}}
/etc/trainmaster/issuer
{{- end -}}

{{- /* Where the file of further issuers is mounted. */ -}}
{{- define "dispatcher.furtherIssuers" -}}
/etc/trainmaster/issuers
{{- end -}}

{{- define "dispatcher.issuersFile" -}}
{{ toJson (dict "issuers" .Values.oidc.issuers) }}
{{- end -}}

{{- define "dispatcher.settings" -}}
{{- $settings := merge (deepCopy .Values.settings) (dict "TRAINMASTER_START_RETRY_SECONDS" "120") -}}
{{- with .Values.oidc }}
{{- if .issuer }}
{{- $_ := set $settings "TRAINMASTER_OIDC_ISSUER" .issuer }}
{{- $_ := set $settings "TRAINMASTER_OIDC_CLIENT_IDS" (join "," .clientIds) }}
{{- with .userClaims }}{{ $_ := set $settings "TRAINMASTER_OIDC_USER_CLAIMS" (join "," .) }}{{ end }}
{{- with .groupsClaim }}{{ $_ := set $settings "TRAINMASTER_OIDC_GROUPS_CLAIM" . }}{{ end }}
{{- with .publicClientSecret }}{{ $_ := set $settings "TRAINMASTER_OIDC_PUBLIC_CLIENT_SECRET" . }}{{ end }}
{{- with .browserClient }}{{ $_ := set $settings "TRAINMASTER_OIDC_BROWSER_CLIENT_ID" .id }}{{ end }}
{{- with .caCertificates }}
{{- $_ := set $settings "TRAINMASTER_OIDC_CA_FILE" (printf "%s/ca.crt" (include "dispatcher.issuerCertificates" $)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.publicUrl }}{{ $_ := set $settings "TRAINMASTER_PUBLIC_URL" . }}{{ end }}
{{- if .Values.oidc.issuers }}
{{- $_ := set $settings "TRAINMASTER_OIDC_ISSUERS_FILE" (printf "%s/issuers.yaml" (include "dispatcher.furtherIssuers" .)) }}
{{- end }}
{{- range $name, $value := $settings }}
{{ $name }}: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end -}}
