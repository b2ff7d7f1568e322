{{- define "agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "agent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "agent.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "agent.selector" -}}
app.kubernetes.io/name: {{ include "agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agent.labels" -}}
{{ include "agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: trainmaster
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "agent.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "agent.keySecret" -}}
{{- if .Values.existingSecret -}}{{ .Values.existingSecret.name }}{{- else -}}{{ include "agent.fullname" . }}-key{{- end -}}
{{- end -}}

{{- define "agent.keySecretKey" -}}
{{- if .Values.existingSecret -}}{{ default "key" .Values.existingSecret.key }}{{- else -}}key{{- end -}}
{{- end -}}

{{- /* The schedulers that are enabled, as a JSON list; auto stands for all of them, sorted so that nothing restarts by itself. */ -}}
{{- define "agent.schedulers" -}}
{{- if has "auto" .Values.schedulers -}}
{{- list "coscheduling" "kai" "kueue" "native" "volcano" "yunikorn" | toJson -}}
{{- else -}}
{{- .Values.schedulers | sortAlpha | toJson -}}
{{- end -}}
{{- end -}}

{{- /* Which of them the agent uses, where the owner does not say: the only one that it may, or what it finds. */ -}}
{{- define "agent.scheduler" -}}
{{- if not .Values.schedulers -}}gates{{- else if eq (len .Values.schedulers) 1 -}}{{ first .Values.schedulers }}{{- else -}}auto{{- end -}}
{{- end -}}

{{- /* The rule by which runs of queues without one are put into namespaces. */ -}}
{{- define "agent.namespaceRule" -}}
{{- if .Values.config.namespace -}}
{{- .Values.config.namespace -}}
{{- else if and .Values.jobNamespaces (not .Values.queues) -}}
{{- first .Values.jobNamespaces -}}
{{- else -}}
trainmaster-jobs-{top}
{{- end -}}
{{- end -}}

{{- /* The namespaces of the queues that are named, by queue, as JSON. The agent fills rules in the same way: `fill` in its configuration. */ -}}
{{- define "agent.queueNamespaces" -}}
{{- $found := dict -}}
{{- $queues := .Values.queues | default (ternary (list) (list "default") (not (empty .Values.jobNamespaces))) -}}
{{- range $queue := $queues -}}
{{- $rule := include "agent.namespaceRule" $ -}}
{{- range $.Values.config.namespaces -}}
{{- if eq .queue $queue -}}{{- $rule = .namespace -}}{{- end -}}
{{- end -}}
{{- $name := $rule | replace "{top}" $queue | replace "{queue}" $queue | replace "{last}" $queue -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "the namespace of queue %q would be %q, which is longer than 63 characters" $queue $name) -}}
{{- end -}}
{{- $_ := set $found $queue $name -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* Namespaces in which runs are created, as a JSON list. */ -}}
{{- define "agent.isolatedNamespaces" -}}
{{- concat (default list .Values.jobNamespaces) (include "agent.queueNamespaces" . | fromJson | values | sortAlpha) | uniq | toJson -}}
{{- end -}}

{{- /* Where the agent has rights, as a JSON list: where runs are created, then where an older release created some. */ -}}
{{- define "agent.jobNamespaces" -}}
{{- $older := list -}}
{{- range .Values.olderNamespaces -}}
{{- if or $.Values.createNamespaces (lookup "v1" "Namespace" "" .) -}}{{- $older = append $older . -}}{{- end -}}
{{- end -}}
{{- concat (default list .Values.jobNamespaces) $older (include "agent.isolatedNamespaces" . | fromJsonArray) | uniq | toJson -}}
{{- end -}}

{{- /* agent.yaml: what the owner says, below what the chart itself knows. */ -}}
{{- define "agent.config" -}}
{{- $own := dict
  "cluster" .Values.cluster
  "jobNamespaces" (include "agent.jobNamespaces" . | fromJsonArray)
  "placement" (dict "priorityClass" .Values.priorityClass.name)
  "lease" (dict "namespace" .Release.Namespace "name" (include "agent.fullname" .))
  "checkpoint" .Values.checkpoint.enabled
  "memberStreams" .Values.memberStreams.enabled
  "useSource" .Values.use.source -}}
{{- if not .Values.use.enabled -}}{{- $_ := set $own "useSeconds" 0 -}}{{- end -}}
{{- if .Values.arrays.enabled -}}
{{- $_ := set $own "arrays" (dict "port" (int .Values.arrays.port) "url" (printf "http://%s-arrays.%s.svc:%d" (include "agent.fullname" .) .Release.Namespace (int .Values.arrays.port))) -}}
{{- with .Values.arrays.imageEntryPoints -}}
{{- if .enabled -}}
{{- $found := dict "image" (include "agent.image" $) -}}
{{- if .pullSecrets -}}{{- $_ := set $found "pullSecrets" .pullSecrets -}}{{- end -}}
{{- if .caConfigMap -}}{{- $_ := set $found "caConfigMap" .caConfigMap -}}{{- end -}}
{{- if .registries -}}{{- $_ := set $found "registries" .registries -}}{{- end -}}
{{- $_ := set $own.arrays "imageEntryPoints" $found -}}
{{- end -}}
{{- end -}}
{{- if .Values.files.enabled -}}
{{- $_ := set $own "files" (dict "image" (include "agent.image" .) "uploadTime" .Values.files.uploadTime) -}}
{{- end -}}
{{- end -}}
{{- if .Values.packingScheduler.enabled -}}{{- $_ := set $own.placement "schedulerName" .Values.packingScheduler.schedulerName -}}{{- end -}}
{{- $otherwise := dict
  "namespace" (include "agent.namespaceRule" .)
  "placement" (dict "scheduler" (include "agent.scheduler" .)) -}}
{{- toYaml (merge $own (deepCopy .Values.config) $otherwise) -}}
{{- end -}}

{{- /* Where the Cluster Autoscaler reports, and whether the agent reads it, as JSON; as in agent.yaml. */ -}}
{{- define "agent.autoscaler" -}}
{{- $given := dig "capacity" "autoscaler" (dict) .Values.config | default dict -}}
{{- $enabled := not (eq $given.enabled false) -}}
{{- dict
  "enabled" $enabled
  "namespace" (default "kube-system" $given.namespace)
  "configMap" (default "cluster-autoscaler-status" $given.configMap)
  "requests" (not (empty $given.provisioningRequest)) | toJson -}}
{{- end -}}

{{- define "agent.dispatcherPort" -}}
{{- $parts := urlParse .Values.url -}}
{{- $port := regexFind ":[0-9]+$" $parts.host | trimPrefix ":" -}}
{{- if $port -}}{{ $port }}{{- else if eq $parts.scheme "https" -}}443{{- else -}}80{{- end -}}
{{- end -}}

{{- /* Those of the extension API server, which are of no other pods. */ -}}
{{- define "agent.apiSelector" -}}
app.kubernetes.io/name: {{ include "agent.name" . }}-api
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agent.apiLabels" -}}
{{ include "agent.apiSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: extension-api
app.kubernetes.io/part-of: trainmaster
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Those of what submits this cluster's objects. */ -}}
{{- define "agent.submissionsSelector" -}}
app.kubernetes.io/name: {{ include "agent.name" . }}-submissions
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agent.submissionsLabels" -}}
{{ include "agent.submissionsSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: submissions
app.kubernetes.io/part-of: trainmaster
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Those of the scheduler that fills nodes. */ -}}
{{- define "agent.packingSelector" -}}
app.kubernetes.io/name: {{ include "agent.name" . }}-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agent.packingLabels" -}}
{{ include "agent.packingSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: packing-scheduler
app.kubernetes.io/part-of: trainmaster
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Its configuration: nodes in use come first, and nothing spreads pods that do not ask for it. */ -}}
{{- define "agent.packingConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: {{ include "agent.fullname" . }}-scheduler
profiles:
  - schedulerName: {{ .Values.packingScheduler.schedulerName }}
    plugins:
      score:
        disabled:
          - {name: NodeResourcesBalancedAllocation}
    pluginConfig:
      - name: NodeResourcesFit
        args:
          scoringStrategy:
            type: MostAllocated
            resources:
              {{- range .Values.packingScheduler.scoredResources }}
              - {name: {{ .name | quote }}, weight: {{ .weight | int }}}
              {{- end }}
      - name: PodTopologySpread
        args:
          defaultingType: List
          defaultConstraints: []
{{- end -}}

{{- /* The addresses of DNS and of the API server. */ -}}
{{- define "agent.apiServerEgress" -}}
# DNS.
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
# The API server: the port of its Service and, as many networks see it, its own.
- ports:
    - {port: 443, protocol: TCP}
    - {port: 6443, protocol: TCP}
  {{- with .Values.networkPolicy.apiServerCidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end -}}

{{- /* What the agent and the extension API server may reach. */ -}}
{{- define "agent.egress" -}}
{{ include "agent.apiServerEgress" . }}
# The dispatcher.
- ports:
    - {port: {{ include "agent.dispatcherPort" . | int }}, protocol: TCP}
  {{- with .Values.networkPolicy.dispatcherCidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- if .Values.tracing.endpoint }}
# The receiver of traces.
- ports:
    - {port: {{ include "agent.tracingPort" .Values.tracing | int }}, protocol: TCP}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Traces, by the variables of OpenTelemetry. */ -}}
{{- define "agent.tracingEnv" -}}
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
{{- define "agent.tracingPort" -}}
{{- $url := urlParse .endpoint -}}
{{- $port := regexFind ":[0-9]+$" $url.host -}}
{{- if $port }}{{ trimPrefix ":" $port }}{{ else if eq $url.scheme "https" }}443{{ else }}80{{ end }}
{{- end -}}
