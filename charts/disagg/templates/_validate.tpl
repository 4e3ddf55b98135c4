{{/*
Combinations that cannot work, each with a sentence that says what to do. Templates are rendered in no
particular order, so each that could fail in another way runs this first.
*/}}
{{- define "disagg.validate" -}}
{{- include "disagg.validateStore" . -}}
{{- if .Values.valkey.enabled }}{{ include "disagg.validateValkey" . }}{{ end -}}
{{- include "disagg.validateTelemetry" . -}}
{{- include "disagg.validateLabels" . -}}
{{- include "disagg.validateTls" . -}}
{{- range (include "disagg.workloads" . | fromJson).items -}}
{{- $where := .component -}}
{{- if .tier }}{{ $where = printf "prefill tier %s" .tier }}{{ end -}}
{{- include "disagg.validateDrain" (dict "where" $where "drain" .values.drain) -}}
{{- include "disagg.validateScale" (dict "where" $where "values" .values) -}}
{{- range .values.extraEnv -}}
{{- if hasPrefix "DISAGG_" .name -}}
{{- fail (printf "%s.extraEnv names %s: settings belong in %s.settings, where they are checked" $where .name $where) -}}
{{- end -}}
{{- end -}}
{{- if eq .component "balancer" -}}
{{- include "disagg.validateBalancer" .values -}}
{{- else -}}
{{- include "disagg.validateGroup" (dict "root" $ "where" $where "workload" .) -}}
{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.prefill.tiers -}}
{{- if has .name $names }}{{ fail (printf "prefill.tiers has two entries called %s" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $route := list "httpRoute" "grpcRoute" -}}
{{- $values := index $.Values.gateway $route -}}
{{- if and $values.enabled (not $values.parentRefs) -}}
{{- fail (printf "gateway.%s.enabled is true, but parentRefs is empty: name the Gateway it belongs to" $route) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.inferencePool.enabled (not .Values.gateway.inferencePool.endpointPicker.name) -}}
{{- fail "gateway.inferencePool.enabled is true, but endpointPicker.name is empty: name the service of the endpoint picker" -}}
{{- end -}}
{{- end -}}

{{- define "disagg.validateTls" -}}
{{- $tls := .Values.tls -}}
{{- if ne $tls.mode "off" -}}
{{- if not $tls.existingSecret -}}
{{- fail (printf "tls.mode is %s, but tls.existingSecret is empty: name the secret with certificate, key and authority, or set the mode to off" $tls.mode) -}}
{{- end -}}
{{- if not $tls.serverName -}}
{{- fail "tls.serverName is empty: pods are reached by addresses that no certificate holds; give a name that is in the certificate" -}}
{{- end -}}
{{- range (include "disagg.workloads" . | fromJson).items -}}
{{- $first := int .values.ports.grpc -}}
{{- $health := int $tls.healthPort -}}
{{- if and (ge $health $first) (lt $health (int (add $first .ranksPerPod))) -}}
{{- fail (printf "tls.healthPort %d lies within the gRPC ports of %s from %d: choose another" $health .component $first) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "disagg.validateDrain" -}}
{{- $drain := .drain -}}
{{- $needed := add (int $drain.preStopSeconds) (int $drain.propagationSeconds) (int $drain.maxSeconds) 15 -}}
{{- if lt (int $drain.terminationGracePeriodSeconds) (int $needed) -}}
{{- fail (printf "%s.drain: terminationGracePeriodSeconds %d is less than preStopSeconds %d + propagationSeconds %d + maxSeconds %d + 15 = %d: Kubernetes would kill work that is promised to finish; raise it, or lower maxSeconds" .where (int $drain.terminationGracePeriodSeconds) (int $drain.preStopSeconds) (int $drain.propagationSeconds) (int $drain.maxSeconds) (int $needed)) -}}
{{- end -}}
{{- end -}}

{{- define "disagg.validateScale" -}}
{{- $scaling := .values.autoscaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling: minReplicas %d exceeds maxReplicas %d" .where (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}

{{- define "disagg.validateBalancer" -}}
{{- if and (eq .kind "Deployment") (gt (int (include "disagg.maxReplicas" .)) 1) -}}
{{- fail (printf "balancer: %s replicas of a Deployment have no names of their own, and members announce themselves by name, so each replica would know a part of them only: set balancer.kind to StatefulSet" (include "disagg.maxReplicas" .)) -}}
{{- end -}}
{{- if eq (int .ports.http) (int .ports.grpc) -}}
{{- fail (printf "balancer.ports: http and grpc are both %d; choose another" (int .ports.grpc)) -}}
{{- end -}}
{{- end -}}

{{- define "disagg.validateGroup" -}}
{{- $values := .workload.values -}}
{{- $ranks := int $values.ranks -}}
{{- $size := int $values.groupSize -}}
{{- $perPod := int .workload.ranksPerPod -}}
{{- if ne (mod $ranks $size) 0 -}}
{{- fail (printf "%s: groupSize %d does not divide ranks %d: each pod of a group runs as many ranks as the others" .where $size $ranks) -}}
{{- end -}}
{{- if and (gt $size 1) (not .root.Values.lws.multiHostPreview) -}}
{{- fail (printf "%s: groupSize is %d, but the ranks of a group meet in the memory of one host: this version cannot run a group over several pods. Set groupSize to 1 with all ranks in one pod, or lws.multiHostPreview to true to render the objects for review" .where $size) -}}
{{- end -}}
{{- if $values.layout -}}
{{- $world := include "disagg.layoutRanks" (dict "where" .where "layout" $values.layout) -}}
{{- if ne (int $world) $ranks -}}
{{- fail (printf "%s: layout %s has %d ranks, but ranks is %d: make them equal" .where $values.layout (int $world) $ranks) -}}
{{- end -}}
{{- end -}}
{{- $limit := (($values.resources | default dict).limits | default dict).memory -}}
{{- $room := include "disagg.bytes" $limit | float64 -}}
{{- if and (gt $room 0.0) (ge (include "disagg.bytes" $values.shmSize | float64) $room) -}}
{{- fail (printf "%s: shmSize %s counts as memory of the pod, and resources.limits.memory is %v: leave room beside it for weights and KV" .where $values.shmSize $limit) -}}
{{- end -}}
{{- if and (gt (int $values.gpu.count) 0) (lt (int $values.gpu.count) $perPod) -}}
{{- fail (printf "%s: a pod has %d ranks but gpu.count %d: each rank needs a GPU of its own" .where $perPod (int $values.gpu.count)) -}}
{{- end -}}
{{- $last := sub (add (int $values.ports.grpc) $perPod) 1 -}}
{{- if gt (int $last) 65535 -}}
{{- fail (printf "%s.ports.grpc %d leaves no room for %d ranks below 65536" .where (int $values.ports.grpc) $perPod) -}}
{{- end -}}
{{- $bases := dict "ports.grpc" (int $values.ports.grpc) "ports.metrics" (int $values.ports.metrics) -}}
{{- if .root.Values.events.enabled -}}
{{- $_ := set $bases "events.port" (int .root.Values.events.port) -}}
{{- $_ := set $bases "events.replayPort" (int .root.Values.events.replayPort) -}}
{{- end -}}
{{- $where := .where -}}
{{- range $name, $port := $bases -}}
{{- range $other, $from := $bases -}}
{{- if and (ne $name $other) (le (int $from) (int $port)) (lt (int $port) (int (add $from $perPod))) -}}
{{- fail (printf "%s: %s %d lies within the %d ports of %s from %d: each rank takes the port plus its number; keep them %d apart" $where $name (int $port) $perPod $other (int $from) $perPod) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Ranks of a layout, as `parse_layout` of engine/parallel/layout reads it. Takes {where, layout}. */}}
{{- define "disagg.layoutRanks" -}}
{{- $layout := .layout -}}
{{- $where := .where -}}
{{- $given := dict -}}
{{- range splitList "," $layout -}}
{{- $part := trim . -}}
{{- if not (regexMatch "^((dp|cp|ep|enp|attn_tp)=[1-9][0-9]{0,5}|path=[ab])$" $part) -}}
{{- fail (printf "%s.layout %s: '%s' is no part of a layout; join by commas sizes from 1 of dp, cp, ep, enp, attn_tp, and path=a or path=b, as in dp=4,cp=2,ep=8" $where $layout $part) -}}
{{- end -}}
{{- $pair := splitList "=" $part -}}
{{- if hasKey $given (first $pair) -}}
{{- fail (printf "%s.layout %s: %s is given twice; leave one out" $where $layout (first $pair)) -}}
{{- end -}}
{{- $_ := set $given (first $pair) (last $pair | int) -}}
{{- end -}}
{{- $engine := mul ($given.cp | default 1) ($given.attn_tp | default 1) -}}
{{- $dp := $given.dp | default (max 1 (div ($given.ep | default $engine) $engine)) -}}
{{- max (mul $dp $engine) ($given.enp | default 1) -}}
{{- end -}}

{{/* Bytes of a quantity of Kubernetes; 0 if there is none, or none that a memory would have. */}}
{{- define "disagg.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- $text := . | default "" | toString -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $number := trimSuffix $unit $text -}}
{{- if and (hasKey $units $unit) (regexMatch "^([0-9]+\\.?|[0-9]*\\.[0-9]+)(e[+-]?[0-9]+)?$" $number) -}}
{{- mulf (float64 $number) (index $units $unit) -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{- define "disagg.validateTelemetry" -}}
{{- $endpoint := .Values.telemetry.otlpEndpoint -}}
{{- with regexFind ":[0-9]+$" (trimSuffix "/" $endpoint) | trimPrefix ":" -}}
{{- if or (gt (len .) 5) (lt (int .) 1) (gt (int .) 65535) -}}
{{- fail (printf "telemetry.otlpEndpoint %s has port %s: ports are 1 to 65535, that of OTLP by gRPC is 4317" $endpoint .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of people beside those of the chart; what their values may be is in the schema. */}}
{{- define "disagg.validateLabels" -}}
{{- $own := include "disagg.ownLabels" . | fromJsonArray -}}
{{- $metrics := .Values.metrics -}}
{{- $all := dict "commonLabels" .Values.commonLabels "metrics.serviceMonitor.labels" $metrics.serviceMonitor.labels
      "metrics.podMonitor.labels" $metrics.podMonitor.labels "metrics.rules.labels" $metrics.rules.labels
      "metrics.dashboards.label" (dict $metrics.dashboards.label "") -}}
{{- range (include "disagg.workloads" . | fromJson).items -}}
{{- $where := .component -}}
{{- if .tier }}{{ $where = printf "prefill tier %s" .tier }}{{ end -}}
{{- $_ := set $all (printf "%s.podLabels" $where) .values.podLabels -}}
{{- end -}}
{{- range $where, $labels := $all -}}
{{- range $key, $_ := $labels -}}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $key) -}}
{{- fail (printf "%s names '%s', which is no key of a label: write letters, digits and -_. between them, with a domain and a / before them if wanted" $where $key) -}}
{{- end -}}
{{- if has $key $own -}}
{{- fail (printf "%s names %s, a label that the chart sets itself: choose another" $where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
