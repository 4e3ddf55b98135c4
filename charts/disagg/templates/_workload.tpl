{{/* Everything of one role: configuration, pods, headless service, budget, autoscaler.
Takes {root, workload}. */}}
{{- define "disagg.workload" -}}
{{- $root := .root -}}
{{- $workload := .workload -}}
{{- $values := $workload.values -}}
{{- $component := $workload.component -}}
{{- $name := $workload.name -}}
{{- $kind := include "disagg.kind" $workload -}}
{{- $labels := include "disagg.labels" (dict "root" $root "component" $component) -}}
{{- $selector := include "disagg.selector" (dict "root" $root "component" $component) -}}
{{- if $workload.tier }}{{ $selector = printf "%s\ndisagg/tier: %s" $selector $workload.tier }}{{ end -}}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
data:
  config.json: |
    {{- include "disagg.config" . | nindent 4 }}
---
{{- if eq $component "balancer" }}
# Members announce themselves here: a balancer is ready only after they have, so ready or not.
{{- else }}
# For people and tools; balancers learn the address of each rank from its announcement.
{{- end }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}-headless
  labels:
    {{- $labels | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- $selector | nindent 4 }}
  ports:
    - name: grpc
      port: {{ int $values.ports.grpc }}
      targetPort: grpc
      appProtocol: {{ ternary "kubernetes.io/h2c" "https" (eq $root.Values.tls.mode "off") }}
---
{{- if eq $kind "LeaderWorkerSet" }}
{{- include "disagg.requireApi" (dict "root" $root "api" "leaderworkerset.x-k8s.io/v1" "for" (printf "%s.groupSize %d" $component (int $values.groupSize)) "install" "LeaderWorkerSet 0.7 or newer") }}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
  {{- with $root.Values.lws.exclusiveTopology }}
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {{ . }}
  {{- end }}
spec:
  {{- if not $values.autoscaling.enabled }}
  replicas: {{ int $values.replicas }}
  {{- end }}
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxUnavailable: 1
      maxSurge: 0
  networkConfig:
    subdomainPolicy: Shared
  leaderWorkerTemplate:
    size: {{ int $values.groupSize }}
    restartPolicy: RecreateGroupOnPodRestart
    workerTemplate:
      {{- include "disagg.rolePod" . | nindent 6 }}
{{- else }}
apiVersion: apps/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  {{- if not $values.autoscaling.enabled }}
  replicas: {{ int $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  {{- if eq $kind "Deployment" }}
  progressDeadlineSeconds: {{ include "disagg.progressDeadline" (dict "root" $root "workload" $workload) }}
  {{- end }}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  {{- if eq $kind "StatefulSet" }}
  serviceName: {{ $name }}-headless
  # All at once: one that waits for members must not keep the others from starting.
  podManagementPolicy: Parallel
  updateStrategy:
    type: RollingUpdate
  {{- else if $values.strategy }}
  strategy:
    {{- toYaml $values.strategy | nindent 4 }}
  {{- else if eq $component "balancer" }}
  # Members hold on to the old balancer until it ends, so a new one beside it would never be ready.
  strategy:
    type: Recreate
  {{- else }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      # A group with GPUs finds no second place as a rule; one without may start before the old goes.
      maxSurge: {{ ternary 0 1 (gt (int $values.gpu.count) 0) }}
      maxUnavailable: {{ ternary 1 0 (gt (int $values.gpu.count) 0) }}
  {{- end }}
  template:
    {{- include "disagg.rolePod" . | nindent 4 }}
{{- end }}
{{- $pods := mul (int (include "disagg.maxReplicas" $values)) (int ($values.groupSize | default 1)) }}
{{- if and $values.pdb.enabled (gt (int $pods) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  # Over all pods of the role: the first eviction takes its whole group down and holds up the next.
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
{{- end }}
{{- if $values.autoscaling.enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: {{ ternary "leaderworkerset.x-k8s.io/v1" "apps/v1" (eq $kind "LeaderWorkerSet") }}
    kind: {{ $kind }}
    name: {{ $name }}
  minReplicas: {{ int $values.autoscaling.minReplicas }}
  maxReplicas: {{ int $values.autoscaling.maxReplicas }}
  metrics:
    {{- if $values.autoscaling.metrics }}
    {{- toYaml $values.autoscaling.metrics | nindent 4 }}
    {{- else }}
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: 70
    {{- end }}
  {{- with $values.autoscaling.behavior }}
  behavior:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}
