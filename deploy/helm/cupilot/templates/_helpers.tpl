{{- define "cupilot.name" -}}
{{- printf "%s-%s" .root.Release.Name .role | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "cupilot.labels" -}}
app.kubernetes.io/name: cupilot
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "cupilot.allLabels" -}}
{{ include "cupilot.labels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "cupilot.image" -}}
{{- printf "%s/cupilot-%s:%s" .root.Values.image.registry .image (default .root.Chart.AppVersion .root.Values.image.tag) | quote -}}
{{- end -}}

{{- define "cupilot.environment" -}}
- {name: CUPILOT_ENVIRONMENT, value: production}
- name: CUPILOT_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ .root.Values.existingSecret }}, key: database-url}}
- name: CUPILOT_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .root.Values.existingSecret }}, key: redis-url}}
- {name: CUPILOT_CHROMA_URL, value: {{ .root.Values.chromaUrl | quote }}}
{{- with .root.Values.traces.otlpEndpoint }}
- {name: CUPILOT_TRACES, value: otlp}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- range $name, $value := merge (dict) .root.Values.settings (dict "LOG_FORMAT" "json") }}
- {name: CUPILOT_{{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "cupilot.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .root.Values.podSecurity.runAsUser }}
  # Without it the group is root's where the image does not know the user.
  runAsGroup: {{ .root.Values.podSecurity.fsGroup }}
  fsGroup: {{ .root.Values.podSecurity.fsGroup }}
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "cupilot.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "cupilot.labels" . | nindent 8 }}
{{- end -}}

{{- define "cupilot.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "cupilot.progress" -}}
startupProbe:
  exec: {command: [python, -m, workers, health]}
  periodSeconds: 10
  timeoutSeconds: 20
  failureThreshold: 30
livenessProbe:
  exec: {command: [python, -m, workers, health]}
  periodSeconds: 30
  timeoutSeconds: 20
  failureThreshold: 3
{{- end -}}
