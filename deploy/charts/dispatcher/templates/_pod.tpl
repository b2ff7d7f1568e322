{{- /* The beginning of the specification of a pod that runs Trainmaster's image. */ -}}
{{- define "dispatcher.podHead" -}}
# No process speaks with the Kubernetes API.
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{ include "dispatcher.podPlace" . }}
{{- end -}}

{{- define "dispatcher.podPlace" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "dispatcher.locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* With the bundled Postgres, each pod brings the schema up to date before it starts: a hook would come before Postgres, or too late
for `helm install --wait`. Migrations may run in several places at once. */ -}}
{{- define "dispatcher.migrateContainer" -}}
- name: migrate
  image: {{ include "dispatcher.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [migrate]
  env:
    {{- include "dispatcher.databaseEnv" . | nindent 4 }}
    - {name: TRAINMASTER_START_RETRY_SECONDS, value: "300"}
  resources:
    {{- toYaml .Values.jobs.resources | nindent 4 }}
  securityContext:
    {{- include "dispatcher.locked" . | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- /* The Deployment of one process. Takes root, component, replicas (0: an autoscaler's), args, port, portName, live, ready, resources,
grace in seconds, and env. */ -}}
{{- define "dispatcher.deployment" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "dispatcher.fullname" $root) .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "dispatcher.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  {{- if .replicas }}
  replicas: {{ .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  selector:
    matchLabels:
      {{- include "dispatcher.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  template:
    metadata:
      labels:
        {{- include "dispatcher.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
        {{- if eq .portName "metrics" }}
        trainmaster.dev/metrics: "true"
        {{- end }}
      annotations:
        {{- with $root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        # Settings are read at the start: a change starts new pods.
        trainmaster.dev/settings: {{ include "dispatcher.settings" $root | sha256sum | trunc 16 | quote }}
        {{- if and (eq .component "api") $root.Values.oidc.issuers }}
        trainmaster.dev/issuers: {{ include "dispatcher.issuersFile" $root | sha256sum | trunc 16 | quote }}
        {{- end }}
    spec:
      {{- include "dispatcher.podHead" $root | nindent 6 }}
      terminationGracePeriodSeconds: {{ .grace }}
      {{- if $root.Values.postgresql.bundled }}
      initContainers:
        {{- include "dispatcher.migrateContainer" $root | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "dispatcher.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: {{ toJson .args }}
          env:
            {{- include "dispatcher.env" $root | nindent 12 }}
            {{- with .env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- if eq .component "api" }}
            {{- with ($root.Values.oidc.browserClient | default dict).existingSecret }}
            - name: TRAINMASTER_OIDC_BROWSER_CLIENT_SECRET
              valueFrom:
                secretKeyRef:
                  name: {{ .name }}
                  key: {{ .key }}
            {{- end }}
            {{- end }}
          envFrom:
            - configMapRef: {name: {{ include "dispatcher.fullname" $root }}}
          ports:
            - {name: {{ .portName }}, containerPort: {{ .port }}}
            {{- if eq .component "scheduler" }}
            - {name: questions, containerPort: 8471}
            {{- end }}
            {{- if eq .component "api" }}
            - {name: streams, containerPort: 8472}
            {{- end }}
          # As long as a start may wait for the stores, and a little longer.
          startupProbe:
            httpGet: {path: {{ .live }}, port: {{ .portName }}}
            periodSeconds: 2
            timeoutSeconds: 5
            failureThreshold: 90
          livenessProbe:
            httpGet: {path: {{ .live }}, port: {{ .portName }}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: {{ .ready }}, port: {{ .portName }}}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 3
          {{- if eq .component "api" }}
          lifecycle:
            # Until no load balancer sends it new calls.
            preStop: {sleep: {seconds: 5}}
          {{- end }}
          resources:
            {{- toYaml .resources | nindent 12 }}
          securityContext:
            {{- include "dispatcher.locked" . | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- if and (eq .component "api") $root.Values.oidc.caCertificates }}
            - {name: issuer, mountPath: {{ include "dispatcher.issuerCertificates" $root }}, readOnly: true}
            {{- end }}
            {{- if and (eq .component "api") $root.Values.oidc.issuers }}
            - {name: issuers, mountPath: {{ include "dispatcher.furtherIssuers" $root }}, readOnly: true}
            {{- end }}
            {{- if and (eq .component "api") $root.Values.oidc.issuerFiles }}
            - {name: issuer-files, mountPath: /etc/trainmaster/issuer-files, readOnly: true}
            {{- end }}
      volumes:
        {{- if eq .component "api" }}
        {{- with $root.Values.oidc.caCertificates }}
        - name: issuer
          configMap:
            name: {{ .configMap }}
            items: [{key: {{ default "ca.crt" .key }}, path: ca.crt}]
        {{- end }}
        {{- if $root.Values.oidc.issuers }}
        - name: issuers
          configMap: {name: {{ include "dispatcher.fullname" $root }}-issuers}
        {{- end }}
        {{- with $root.Values.oidc.issuerFiles }}
        - name: issuer-files
          configMap: {name: {{ . }}}
        {{- end }}
        {{- end }}
        - name: tmp
          emptyDir: {sizeLimit: 256Mi}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "dispatcher.selector" $root | nindent 20 }}
                    app.kubernetes.io/component: {{ .component }}
{{- end -}}
