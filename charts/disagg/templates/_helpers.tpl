{{/* Names, labels, images: what every object needs. */}}

{{- define "disagg.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 34 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 34 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 34 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select: never a version. Takes {root, component}. */}}
{{- define "disagg.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Keys of labels that the chart sets itself, as a JSON list. */}}
{{- define "disagg.ownLabels" -}}
["app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component", "app.kubernetes.io/version",
 "app.kubernetes.io/part-of", "app.kubernetes.io/managed-by", "helm.sh/chart", "disagg/tier", "llm-d.ai/role"]
{{- end -}}

{{/* All labels of an object. Takes {root, component}, and labels of this object besides (`extra`). */}}
{{- define "disagg.labels" -}}
{{ include "disagg.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: disagg
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with mergeOverwrite (deepCopy .root.Values.commonLabels) (.extra | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name of an image. Takes {root, image}. */}}
{{- define "disagg.image" -}}
{{- $image := .image -}}
{{- if $image.registry }}{{ $image.registry }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "disagg.serviceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.serviceAccount.create -}}
{{- include "disagg.fullname" . -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/*
Fails unless the cluster serves an API. Takes {root, api, for, install}. `helm lint`, which neither
installs nor upgrades, knows of no cluster and cannot be told of one.
*/}}
{{- define "disagg.requireApi" -}}
{{- $isForCluster := or .root.Release.IsInstall .root.Release.IsUpgrade -}}
{{- if and $isForCluster (not (.root.Capabilities.APIVersions.Has .api)) -}}
{{- fail (printf "%s needs the API %s, which this cluster does not serve: install %s, or switch it off (helm template: add --api-versions %s)" .for .api .install .api) -}}
{{- end -}}
{{- end -}}

{{/*
The workloads of balancer, prefill (one per tier) and decode, as JSON {items: [...]}, each with
component, name, tier, and values: `defaults`, over them the role's, over them the tier's.
*/}}
{{- define "disagg.workloads" -}}
{{- $root := . -}}
{{- $fullname := include "disagg.fullname" . -}}
{{- $items := list -}}
{{- range $component := list "balancer" "prefill" "decode" -}}
{{- $role := mergeOverwrite (deepCopy $root.Values.defaults) (deepCopy (index $root.Values $component)) -}}
{{- $tiers := $role.tiers | default list -}}
{{- range $tier := ($tiers | default (list dict)) -}}
{{- $values := mergeOverwrite (deepCopy (omit $role "tiers")) (deepCopy (omit $tier "name")) -}}
{{- $name := printf "%s-%s" $fullname $component -}}
{{- if $tier.name }}{{ $name = printf "%s-%s" $name $tier.name }}{{ end -}}
{{- $_ := set $values "image" (mergeOverwrite (deepCopy $root.Values.image) $values.image) -}}
{{- $perPod := 1 -}}
{{- if $values.ranks }}{{ $perPod = div (int $values.ranks) (int $values.groupSize) }}{{ end -}}
{{- $items = append $items (dict "component" $component "name" $name "tier" ($tier.name | default "") "values" $values "ranksPerPod" $perPod) -}}
{{- end -}}
{{- end -}}
{{- dict "items" $items | toJson -}}
{{- end -}}

{{/* Whether a role has a setting; empty if not. Takes {root, component, key}. */}}
{{- define "disagg.hasSetting" -}}
{{- $known := index (.root.Files.Get "files/settings.json" | fromJson) .component -}}
{{- if has .key $known }}yes{{ end -}}
{{- end -}}

{{/* Most pods of a workload, with autoscaling or without. */}}
{{- define "disagg.maxReplicas" -}}
{{- if .autoscaling.enabled }}{{ .autoscaling.maxReplicas }}{{ else }}{{ .replicas }}{{ end -}}
{{- end -}}

{{/*
Seconds after which a Deployment is said to have failed: an old pod may drain and a new one load for as
long as they are allowed to, and a balancer is ready only after members are; with what Kubernetes grants
by itself for the rest, such as fetching the image. Takes {root, workload}.
*/}}
{{- define "disagg.progressDeadline" -}}
{{- $most := 0 -}}
{{- $component := .workload.component -}}
{{- $name := .workload.name -}}
{{- range (include "disagg.workloads" .root | fromJson).items -}}
{{- if or (eq $component "balancer") (eq $name .name) -}}
{{- $startup := .values.probes.startup -}}
{{- $load := mul (int $startup.periodSeconds) (int $startup.failureThreshold) -}}
{{- $most = max $most (add (int .values.drain.terminationGracePeriodSeconds) $load) -}}
{{- end -}}
{{- end -}}
{{- add $most 600 -}}
{{- end -}}

{{/* Kind of a workload. */}}
{{- define "disagg.kind" -}}
{{- if eq .component "balancer" -}}
{{- .values.kind -}}
{{- else if gt (int .values.groupSize) 1 -}}
LeaderWorkerSet
{{- else -}}
Deployment
{{- end -}}
{{- end -}}

{{/*
Where members find the balancers, as a JSON list. Not the service of the clients: a balancer is ready
only once members have announced themselves, so members must reach one that is not.
*/}}
{{- define "disagg.balancers" -}}
{{- $role := mergeOverwrite (deepCopy .Values.defaults) (deepCopy .Values.balancer) -}}
{{- $name := printf "%s-balancer" (include "disagg.fullname" .) -}}
{{- $service := printf "%s-headless.%s.svc:%d" $name .Release.Namespace (int $role.ports.grpc) -}}
{{- $addresses := list -}}
{{- if eq $role.kind "StatefulSet" -}}
{{- range $number := until (int (include "disagg.maxReplicas" $role)) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s" $name $number $service) -}}
{{- end -}}
{{- else -}}
{{- $addresses = list $service -}}
{{- end -}}
{{- $addresses | toJson -}}
{{- end -}}

{{/* The servers in the URL of the external store, each host or host:port, as a JSON list. */}}
{{- define "disagg.storeNodes" -}}
{{- regexReplaceAll "^[a-z+]+://([^/?]*@)?|[/?].*$" .Values.externalRedis.url "" | splitList "," | toJson -}}
{{- end -}}

{{/* Ports of the external store, as a JSON list: those of its URL, and those that are named besides. */}}
{{- define "disagg.storePorts" -}}
{{- $isSentinel := contains "+sentinel://" .Values.externalRedis.url -}}
{{- $ports := list -}}
{{- range include "disagg.storeNodes" . | fromJsonArray -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default (ternary "26379" "6379" $isSentinel) | int) -}}
{{- end -}}
{{- range .Values.externalRedis.ports }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- if and $isSentinel (not .Values.externalRedis.ports) }}{{ $ports = append $ports 6379 }}{{ end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{/* URL of the store, with the files that prove who is who; never a password. */}}
{{- define "disagg.storeUrl" -}}
{{- if .Values.valkey.enabled -}}
redis://{{ include "disagg.fullname" . }}-valkey:{{ int .Values.valkey.port }}
{{- else -}}
{{- $store := .Values.externalRedis -}}
{{- $files := list -}}
{{- if $store.existingSecret }}{{ $files = append $files "password_file=/etc/disagg/store/password" }}{{ end -}}
{{- if $store.tls.enabled -}}
{{- if $store.tls.caKey }}{{ $files = append $files "tls_ca_file=/etc/disagg/store-tls/ca.crt" }}{{ end -}}
{{- if $store.tls.certKey }}{{ $files = append $files "tls_cert_file=/etc/disagg/store-tls/tls.crt" }}{{ end -}}
{{- if $store.tls.keyKey }}{{ $files = append $files "tls_key_file=/etc/disagg/store-tls/tls.key" }}{{ end -}}
{{- end -}}
{{- if $store.integrity.existingSecret }}{{ $files = append $files "integrity_key_file=/etc/disagg/store-integrity/key" }}{{ end -}}
{{- $store.url -}}
{{- if $files }}{{ ternary "&" "?" (contains "?" $store.url) }}{{ join "&" $files }}{{ end -}}
{{- end -}}
{{- end -}}
