{{/* The store: which, where, and whether its memory fits its pod. */}}

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
{{- /* Nothing below shows a part of the URL before it is known to hold no password. */ -}}
{{- if regexMatch "://[^@]*:[^@]*@" $store.url -}}
{{- fail "externalRedis.url holds a password, which would stand in a ConfigMap: leave it out and name a secret in externalRedis.existingSecret" -}}
{{- end -}}
{{- include "disagg.validateStoreUrl" . -}}
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

{{/* As `parse_url` of kvstore/config.py reads it. */}}
{{- define "disagg.validateStoreUrl" -}}
{{- $url := .Values.externalRedis.url -}}
{{- $isSentinel := contains "+sentinel://" $url -}}
{{- $form := ternary "redis+sentinel://host:26379,host:26379/SERVICE" "redis://host:6379" $isSentinel -}}
{{- if regexMatch "[\\s#]" $url -}}
{{- fail (printf "externalRedis.url %s has a space or a # in it: write %s" $url $form) -}}
{{- end -}}
{{- $nodes := include "disagg.storeNodes" . | fromJsonArray -}}
{{- if and (gt (len $nodes) 1) (not $isSentinel) -}}
{{- fail (printf "externalRedis.url %s names %d servers: only sentinels are listed; of a cluster name one node" $url (len $nodes)) -}}
{{- end -}}
{{- range $nodes -}}
{{- if not (regexMatch "^(\\[[0-9a-fA-F:.]+\\]|[A-Za-z0-9._-]+)(:[0-9]+)?$" .) -}}
{{- fail (printf "externalRedis.url %s has no host, or '%s', which is none: write %s" $url . $form) -}}
{{- end -}}
{{- $port := regexFind ":[0-9]+$" . | trimPrefix ":" | default "1" -}}
{{- if or (gt (len $port) 5) (lt (int $port) 1) (gt (int $port) 65535) -}}
{{- fail (printf "externalRedis.url %s has port %s: ports are 1 to 65535" $url $port) -}}
{{- end -}}
{{- end -}}
{{- $path := regexReplaceAll "^[a-z+]+://[^/?]*|\\?.*$" $url "" -}}
{{- if and $isSentinel (not (regexMatch "^/[^/]+(/[0-9]{1,5})?/?$" $path)) -}}
{{- fail (printf "externalRedis.url %s names no service, or a database that is no number: write %s" $url $form) -}}
{{- end -}}
{{- if not (or $isSentinel (regexMatch "^/?([0-9]{1,5}/?)?$" $path)) -}}
{{- fail (printf "externalRedis.url %s has %s behind its host, where only the number of a database may stand: write %s" $url $path $form) -}}
{{- end -}}
{{- range regexFind "\\?.*$" $url | trimPrefix "?" | splitList "&" -}}
{{- if not (regexMatch "^(|db=[0-9]{1,5}|(password|tls_ca|tls_cert|tls_key|integrity_key)_file=.+)$" .) -}}
{{- fail (printf "externalRedis.url says %s: only db=NUMBER may stand behind the ?, and password_file, tls_ca_file, tls_cert_file, tls_key_file and integrity_key_file with a path" (first (splitList "=" .))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "disagg.validateValkey" -}}
{{- $valkey := .Values.valkey -}}
{{- $limit := (($valkey.resources | default dict).limits | default dict).memory -}}
{{- $units := dict "" 1 "b" 1 "k" 1000 "kb" 1024 "m" 1000000 "mb" 1048576 "g" 1000000000 "gb" 1073741824 -}}
{{- $unit := regexFind "[a-z]*$" (lower $valkey.maxMemory) -}}
{{- $bytes := mulf (float64 (regexFind "^[0-9]+" $valkey.maxMemory)) (index $units $unit) -}}
{{- $room := include "disagg.bytes" $limit | float64 -}}
{{- if and (gt $room 0.0) (ge $bytes $room) -}}
{{- fail (printf "valkey.maxMemory %s does not fit valkey.resources.limits.memory %v: Kubernetes would kill it before it drops anything; raise the limit above it, by a tenth at least, or lower maxMemory" $valkey.maxMemory $limit) -}}
{{- end -}}
{{- end -}}
