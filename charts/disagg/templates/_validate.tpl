{{/*
Combinations that cannot work, each with a sentence that says what to do. Templates are rendered in no
particular order, so each that could fail in another way runs this first.
*/}}
{{- define "disagg.validate" -}}
{{- include "disagg.validateStore" . -}}
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

{{- define "disagg.validateStore" -}}
{{- $store := .Values.externalRedis -}}
{{- if and .Values.valkey.enabled $store.url -}}
{{- fail "valkey.enabled is true and externalRedis.url is set: there is one store; set valkey.enabled to false to use the external one" -}}
{{- end -}}
{{- if not .Values.valkey.enabled -}}
{{- if not $store.url -}}
{{- fail "there is no store: set valkey.enabled to true, or externalRedis.url to that of a Redis or Valkey" -}}
{{- end -}}
{{- if not (regexMatch "^rediss?(\\+cluster|\\+sentinel)?://" $store.url) -}}
{{- fail "externalRedis.url must begin with redis://, rediss://, redis+cluster:// or redis+sentinel://: prefill and decode reach each other's blocks over the network only" -}}
{{- end -}}
{{- if regexMatch "://[^/@]*:[^/@]*@" $store.url -}}
{{- fail "externalRedis.url holds a password, which would stand in a ConfigMap: leave it out and name a secret in externalRedis.existingSecret" -}}
{{- end -}}
{{- if and $store.tls.enabled (not $store.tls.existingSecret) -}}
{{- fail "externalRedis.tls.enabled is true, but externalRedis.tls.existingSecret is empty: name the secret with the authority's certificate (for a public authority leave tls off and use a rediss:// URL)" -}}
{{- end -}}
{{- if and $store.tls.enabled (not (hasPrefix "rediss" $store.url)) -}}
{{- fail "externalRedis.tls.enabled is true, but the URL is not encrypted: write rediss:// instead of redis://" -}}
{{- end -}}
{{- if ne (empty $store.tls.certKey) (empty $store.tls.keyKey) -}}
{{- fail "externalRedis.tls.certKey and externalRedis.tls.keyKey belong together: set both, or none" -}}
{{- end -}}
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
{{- $world := 1 -}}
{{- range $axis := list "dp" "cp" "attn_tp" -}}
{{- with regexFind (printf "(^|,)%s=[0-9]+" $axis) $values.layout -}}
{{- $world = mul $world (int (last (splitList "=" .))) -}}
{{- end -}}
{{- end -}}
{{- with regexFind "(^|,)enp=[0-9]+" $values.layout -}}
{{- $world = max $world (int (last (splitList "=" .))) -}}
{{- end -}}
{{- if ne (int $world) $ranks -}}
{{- fail (printf "%s: layout %s has %d ranks, but ranks is %d: make them equal" .where $values.layout (int $world) $ranks) -}}
{{- end -}}
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
