{{/*
The settings file of a process. One file holds everything but what differs from pod to pod (address,
group name), which comes by environment. JSON, since that is what the processes read.
*/}}

{{/*
Settings in camelCase to the spelling of the processes. Takes {value, path, known}: path is that of the
value with a dot at its end, known the names of all settings; returns JSON {it}. A setting that is a map
itself, such as one by tenant, keeps its keys.
*/}}
{{- define "disagg.snake" -}}
{{- $root := . -}}
{{- if and (kindIs "map" .value) (not (has (trimSuffix "." .path) .known)) -}}
{{- $result := dict -}}
{{- range $key, $value := .value -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $name := snakecase $key -}}
{{- $inner := dict "value" $value "path" (printf "%s%s." $root.path $name) "known" $root.known -}}
{{- $_ := set $result $name (include "disagg.snake" $inner | fromJson).it -}}
{{- end -}}
{{- end -}}
{{- dict "it" $result | toJson -}}
{{- else -}}
{{- dict "it" .value | toJson -}}
{{- end -}}
{{- end -}}

{{/* Takes {root, workload}; returns the content of config.json. */}}
{{- define "disagg.config" -}}
{{- $root := .root -}}
{{- $component := .workload.component -}}
{{- $values := .workload.values -}}
{{- $model := dict "path" $root.Values.model.path -}}
{{- if $root.Values.model.name }}{{ $_ := set $model "name" $root.Values.model.name }}{{ end -}}
{{- $config := dict
      "model" $model
      "store" (dict "url" (include "disagg.storeUrl" $root))
      "listen" (dict "port" (int $values.ports.grpc))
      "drain" (dict "propagation_s" $values.drain.propagationSeconds "max_s" $values.drain.maxSeconds)
      "log" (dict "level" $root.Values.log.level "form" $root.Values.log.form) -}}
{{- if eq $component "balancer" -}}
{{- $_ := set $config.listen "host" $root.Values.listenAddress -}}
{{- $_ := set $config "http" (dict "host" $root.Values.listenAddress "port" (int $values.ports.http)) -}}
{{- $replicas := int (include "disagg.maxReplicas" $values) -}}
{{- if gt $replicas 1 -}}
{{- /* Balancers that share members decide on views that are older than they think. */ -}}
{{- $_ := set $config "routing" (dict "replicas" $replicas) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $config "announce" (dict "balancers" (include "disagg.balancers" $root | fromJsonArray)) -}}
{{- if $values.layout -}}
{{- $_ := set $config "group" (dict "layout" $values.layout) -}}
{{- else -}}
{{- $_ := set $config "group" (dict "ranks" (int $values.ranks)) -}}
{{- end -}}
{{- $_ := set $config "metrics" (dict "port" (int $values.ports.metrics) "host" $root.Values.listenAddress) -}}
{{- if $root.Values.events.enabled -}}
{{- $_ := set $config "events" (dict
      "endpoint" (printf "tcp://*:%d" (int $root.Values.events.port))
      "replay_endpoint" (printf "tcp://*:%d" (int $root.Values.events.replayPort))) -}}
{{- end -}}
{{- end -}}
{{- with $root.Values.tls -}}
{{- if ne .mode "off" -}}
{{- $tls := dict "mode" .mode "server_name" .serverName "health_port" (int .healthPort)
      "cert_file" "/etc/disagg/tls/tls.crt" "key_file" "/etc/disagg/tls/tls.key" "ca_file" "/etc/disagg/tls/ca.crt" -}}
{{- if eq .mode "mtls" }}{{ $_ := set $tls "peers" (list .serverName) }}{{ end -}}
{{- $_ := set $config "tls" $tls -}}
{{- end -}}
{{- end -}}
{{- if and (eq $component "balancer") $root.Values.auth.existingSecret -}}
{{- $_ := set $config "auth" (dict "keys_file" "/etc/disagg/auth/keys") -}}
{{- end -}}
{{- $known := index ($root.Files.Get "files/settings.json" | fromJson) $component -}}
{{- $settings := (include "disagg.snake" (dict "value" $values.settings "path" "" "known" $known) | fromJson).it -}}
{{- mergeOverwrite $config $settings | toPrettyJson | replace "\\u0026" "&" -}}
{{- end -}}
