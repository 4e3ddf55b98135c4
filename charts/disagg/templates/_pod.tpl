{{/*
The one pod of the chart. Takes a map:
  root, component
  values           of the role: resources, gpu, rdma, probes, drain, placement and so on
  container        name, image and pullPolicy, command or args, env, ports, probes, mounts
  volumes          besides scratch
  labels, annotations
*/}}
{{- define "disagg.pod" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $container := .container -}}
{{- $drain := $values.drain | default dict -}}
metadata:
  labels:
    {{- $extra := mergeOverwrite (deepCopy ($values.podLabels | default dict)) (.labels | default dict) }}
    {{- include "disagg.labels" (dict "root" $root "component" .component "extra" $extra) | nindent 4 }}
  {{- with mergeOverwrite (dict) (.annotations | default dict) ($values.podAnnotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "disagg.serviceAccountName" $root }}
  automountServiceAccountToken: false
  # Variables of services begin with their name; a release called disagg would make settings of them.
  enableServiceLinks: false
  {{- if $values.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $drain.terminationGracePeriodSeconds }}
  terminationGracePeriodSeconds: {{ int . }}
  {{- end }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $spread := $values.topologySpreadConstraints }}
  {{- if and (not $spread) (eq .component "balancer") }}
  {{- $spread = list (dict "maxSkew" 1 "topologyKey" "topology.kubernetes.io/zone" "whenUnsatisfiable" "ScheduleAnyway") }}
  {{- end }}
  {{- if $spread }}
  {{- $selector := dict "matchLabels" (include "disagg.selector" (dict "root" $root "component" .component) | fromYaml) }}
  topologySpreadConstraints:
    {{- range $spread }}
    - {{- toYaml (merge (deepCopy .) (dict "labelSelector" $selector)) | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ $container.name }}
      image: {{ $container.image }}
      imagePullPolicy: {{ $container.pullPolicy }}
      {{- with $container.command }}
      command:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $container.args }}
      args:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with concat ($container.env | default list) ($values.extraEnv | default list) }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $container.ports }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $container.probes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with $drain.preStopSeconds }}
      lifecycle:
        preStop:
          sleep:
            seconds: {{ int . }}
      {{- end }}
      {{- $devices := dict }}
      {{- if int ($values.gpu | default dict).count }}
      {{- $_ := set $devices $values.gpu.resourceName (int $values.gpu.count) }}
      {{- end }}
      {{- if int ($values.rdma | default dict).count }}
      {{- $_ := set $devices $values.rdma.resourceName (int $values.rdma.count) }}
      {{- end }}
      {{- $resources := deepCopy ($values.resources | default dict) }}
      {{- if $devices }}
      {{- $resources = mergeOverwrite $resources (dict "requests" $devices "limits" $devices) }}
      {{- end }}
      {{- with $resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          {{- if int ($values.rdma | default dict).count }}
          add: [IPC_LOCK]
          {{- end }}
      volumeMounts:
        - name: scratch
          mountPath: /tmp
        {{- with concat ($container.mounts | default list) ($values.extraVolumeMounts | default list) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: scratch
      emptyDir:
        sizeLimit: {{ $values.scratchSize | default "64Mi" }}
    {{- with concat (.volumes | default list) ($values.extraVolumes | default list) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Volumes and mounts of the store's secrets, as JSON {volumes, mounts}. */}}
{{- define "disagg.storeFiles" -}}
{{- $volumes := list -}}
{{- $mounts := list -}}
{{- $store := .Values.externalRedis -}}
{{- if not .Values.valkey.enabled -}}
{{- if $store.existingSecret -}}
{{- $items := list (dict "key" $store.passwordKey "path" "password") -}}
{{- $volumes = append $volumes (dict "name" "store" "secret" (dict "secretName" $store.existingSecret "defaultMode" 288 "items" $items)) -}}
{{- $mounts = append $mounts (dict "name" "store" "mountPath" "/etc/disagg/store" "readOnly" true) -}}
{{- end -}}
{{- if $store.tls.enabled -}}
{{- $items := list -}}
{{- if $store.tls.caKey }}{{ $items = append $items (dict "key" $store.tls.caKey "path" "ca.crt") }}{{ end -}}
{{- if $store.tls.certKey }}{{ $items = append $items (dict "key" $store.tls.certKey "path" "tls.crt") }}{{ end -}}
{{- if $store.tls.keyKey }}{{ $items = append $items (dict "key" $store.tls.keyKey "path" "tls.key") }}{{ end -}}
{{- $volumes = append $volumes (dict "name" "store-tls" "secret" (dict "secretName" $store.tls.existingSecret "defaultMode" 288 "items" $items)) -}}
{{- $mounts = append $mounts (dict "name" "store-tls" "mountPath" "/etc/disagg/store-tls" "readOnly" true) -}}
{{- end -}}
{{- if $store.integrity.existingSecret -}}
{{- $items := list (dict "key" $store.integrity.key "path" "key") -}}
{{- $volumes = append $volumes (dict "name" "store-integrity" "secret" (dict "secretName" $store.integrity.existingSecret "defaultMode" 288 "items" $items)) -}}
{{- $mounts = append $mounts (dict "name" "store-integrity" "mountPath" "/etc/disagg/store-integrity" "readOnly" true) -}}
{{- end -}}
{{- end -}}
{{- dict "volumes" $volumes "mounts" $mounts | toJson -}}
{{- end -}}

{{/* Volumes and mounts of certificates and API keys, as JSON {volumes, mounts}. Takes {root, component}. */}}
{{- define "disagg.accessFiles" -}}
{{- $volumes := list -}}
{{- $mounts := list -}}
{{- $tls := .root.Values.tls -}}
{{- if ne $tls.mode "off" -}}
{{- $items := list (dict "key" $tls.caKey "path" "ca.crt") -}}
{{- if ne .component "test" -}}
{{- $items = concat $items (list (dict "key" $tls.certKey "path" "tls.crt") (dict "key" $tls.keyKey "path" "tls.key")) -}}
{{- end -}}
{{- $volumes = append $volumes (dict "name" "tls" "secret" (dict "secretName" $tls.existingSecret "defaultMode" 288 "items" $items)) -}}
{{- $mounts = append $mounts (dict "name" "tls" "mountPath" "/etc/disagg/tls" "readOnly" true) -}}
{{- end -}}
{{- $auth := .root.Values.auth -}}
{{- if and $auth.existingSecret (has .component (list "balancer" "test")) -}}
{{- $items := list (dict "key" $auth.keysKey "path" "keys") -}}
{{- $volumes = append $volumes (dict "name" "auth" "secret" (dict "secretName" $auth.existingSecret "defaultMode" 288 "items" $items)) -}}
{{- $mounts = append $mounts (dict "name" "auth" "mountPath" "/etc/disagg/auth" "readOnly" true) -}}
{{- end -}}
{{- dict "volumes" $volumes "mounts" $mounts | toJson -}}
{{- end -}}

{{/* The pod of balancer, prefill or decode. Takes {root, workload}. */}}
{{- define "disagg.rolePod" -}}
{{- $root := .root -}}
{{- $workload := .workload -}}
{{- $values := $workload.values -}}
{{- $component := $workload.component -}}
{{- $isMember := ne $component "balancer" -}}
{{- $grpc := int $values.ports.grpc -}}
{{- $store := include "disagg.storeFiles" $root | fromJson -}}
{{- $mounts := prepend $store.mounts (dict "name" "config" "mountPath" "/etc/disagg/config" "readOnly" true) -}}
{{- $volumes := prepend $store.volumes (dict "name" "config" "configMap" (dict "name" $workload.name)) -}}
{{- $access := include "disagg.accessFiles" (dict "root" $root "component" $component) | fromJson -}}
{{- $mounts = concat $mounts $access.mounts -}}
{{- $volumes = concat $volumes $access.volumes -}}
{{- with $root.Values.model.volume -}}
{{- $volumes = append $volumes (mergeOverwrite (deepCopy .) (dict "name" "model")) -}}
{{- $mounts = append $mounts (dict "name" "model" "mountPath" $root.Values.model.mountPath "readOnly" true) -}}
{{- end -}}
{{- $env := list (dict "name" "HOME" "value" "/tmp") -}}
{{- $ports := list -}}
{{- $labels := dict -}}
{{- $module := "balancer" -}}
{{- if $isMember -}}
{{- $module = printf "%s_service" $component -}}
{{- $_ := set $labels "llm-d.ai/role" $component -}}
{{- with $workload.tier }}{{ $_ := set $labels "disagg/tier" . }}{{ end -}}
{{- $volumes = append $volumes (dict "name" "shm" "emptyDir" (dict "medium" "Memory" "sizeLimit" $values.shmSize)) -}}
{{- $mounts = append $mounts (dict "name" "shm" "mountPath" "/dev/shm") -}}
{{- /* What members announce is the address they listen on. */ -}}
{{- $env = append $env (dict "name" "DISAGG_LISTEN__HOST" "valueFrom" (dict "fieldRef" (dict "fieldPath" "status.podIP"))) -}}
{{- if eq (include "disagg.kind" $workload) "LeaderWorkerSet" -}}
{{- $env = append $env (dict "name" "GROUP_INDEX" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"))) -}}
{{- $env = append $env (dict "name" "DISAGG_GROUP__NAME" "value" (printf "%s-$(GROUP_INDEX)" $workload.name)) -}}
{{- else -}}
{{- $env = append $env (dict "name" "DISAGG_GROUP__NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name"))) -}}
{{- end -}}
{{- $env = append $env (dict "name" "OMP_NUM_THREADS" "value" "1") -}}
{{- range $rank := until (int $workload.ranksPerPod) -}}
{{- $ports = append $ports (dict "name" (ternary "grpc" (printf "grpc-%d" $rank) (eq $rank 0)) "containerPort" (add $grpc $rank) "protocol" "TCP") -}}
{{- end -}}
{{- range $rank := until (int $workload.ranksPerPod) -}}
{{- $ports = append $ports (dict "name" (ternary "metrics" (printf "metrics-%d" $rank) (eq $rank 0)) "containerPort" (add (int $values.ports.metrics) $rank) "protocol" "TCP") -}}
{{- end -}}
{{- if $root.Values.events.enabled -}}
{{- range $rank := until (int $workload.ranksPerPod) -}}
{{- $ports = append $ports (dict "name" (printf "events-%d" $rank) "containerPort" (add (int $root.Values.events.port) $rank) "protocol" "TCP") -}}
{{- $ports = append $ports (dict "name" (printf "replay-%d" $rank) "containerPort" (add (int $root.Values.events.replayPort) $rank) "protocol" "TCP") -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- if gt (int (include "disagg.maxReplicas" $values)) 1 -}}
{{- $env = append $env (dict "name" "DISAGG_ROUTING__SALT" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name"))) -}}
{{- end -}}
{{- $ports = list (dict "name" "http" "containerPort" (int $values.ports.http) "protocol" "TCP") (dict "name" "grpc" "containerPort" $grpc "protocol" "TCP") -}}
{{- end -}}
{{- with $root.Values.telemetry.otlpEndpoint -}}
{{- range $field := list (list "POD_NAME" "metadata.name") (list "POD_NAMESPACE" "metadata.namespace") (list "NODE_NAME" "spec.nodeName") -}}
{{- $env = append $env (dict "name" (first $field) "valueFrom" (dict "fieldRef" (dict "fieldPath" (last $field)))) -}}
{{- end -}}
{{- $env = concat $env (list
      (dict "name" "OTEL_EXPORTER_OTLP_ENDPOINT" "value" .)
      (dict "name" "OTEL_SERVICE_NAME" "value" (printf "disagg-%s" $component))
      (dict "name" "OTEL_RESOURCE_ATTRIBUTES" "value" "service.namespace=disagg,k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),k8s.node.name=$(NODE_NAME)")
      (dict "name" "OTEL_TRACES_SAMPLER" "value" $root.Values.telemetry.sampler)
      (dict "name" "OTEL_TRACES_SAMPLER_ARG" "value" $root.Values.telemetry.samplerRatio)) -}}
{{- end -}}
{{- $probed := $grpc -}}
{{- if ne $root.Values.tls.mode "off" -}}
{{- $probed = int $root.Values.tls.healthPort -}}
{{- $ports = append $ports (dict "name" "grpc-health" "containerPort" $probed "protocol" "TCP") -}}
{{- end -}}
{{- $probes := dict -}}
{{- range $kind := list "startup" "liveness" "readiness" -}}
{{- $grpcProbe := dict "port" $probed "service" $kind -}}
{{- $timing := index $values.probes $kind -}}
{{- $_ := set $probes (printf "%sProbe" $kind) (dict "grpc" $grpcProbe "periodSeconds" (int $timing.periodSeconds) "failureThreshold" (int $timing.failureThreshold) "timeoutSeconds" 2) -}}
{{- end -}}
{{- $container := dict
      "name" $component
      "image" (include "disagg.image" (dict "root" $root "image" $values.image))
      "pullPolicy" $values.image.pullPolicy
      "args" (list $module "--config" "/etc/disagg/config/config.json")
      "env" $env "ports" $ports "probes" $probes "mounts" $mounts -}}
{{- $config := include "disagg.config" (dict "root" $root "workload" $workload) -}}
{{- include "disagg.pod" (dict
      "root" $root "component" $component "values" $values "container" $container
      "volumes" $volumes "labels" $labels
      "annotations" (dict "checksum/config" (sha256sum $config))) -}}
{{- end -}}
