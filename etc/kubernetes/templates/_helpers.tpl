{{- /* What a schema cannot say: refused with a sentence. */}}
{{- define "agents.check" }}
{{- $volume := .Values.store.volume }}
{{- $folder := or $volume.claim $volume.hostPath }}
{{- if not .Values.image.repository }}
{{- fail "image.repository is needed: the place to which you have pushed the image that etc/containers/agent builds." }}
{{- end }}
{{- if regexMatch "[@ ]|:[^/]*$" .Values.image.repository }}
{{- fail (printf "image.repository is the place without a tag or digest, and image.tag has the tag; it is %q." .Values.image.repository) }}
{{- end }}
{{- if not (regexMatch "^([a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?)?$" .Values.realm) }}
{{- fail (printf "realm has up to 30 lower-case letters, digits and hyphens, since names of objects end with it; it is %q." .Values.realm) }}
{{- end }}
{{- if not .Values.store.url }}
{{- fail "store.url is needed: one place for suspended sessions that all nodes reach, as s3://bucket/prefix, or a folder below store.volume.mountPath." }}
{{- end }}
{{- if not (regexMatch "^((s3|gs|az)://|/)[^ ]+$" .Values.store.url) }}
{{- fail (printf "store.url is a folder's whole path or begins with s3://, gs:// or az://, not %q." .Values.store.url) }}
{{- end }}
{{- if eq .Release.Namespace .Values.hub.namespace }}
{{- fail (printf "The agents must not be in the Hub's namespace (%s): they are root on their nodes, and users' pods are there. Install the chart into another one." .Values.hub.namespace) }}
{{- end }}
{{- if and $volume.claim $volume.hostPath }}
{{- fail "store.volume takes a claim or a hostPath, not both." }}
{{- end }}
{{- if and $volume.create (not $volume.claim) }}
{{- fail "store.volume.create needs the name of the claim to make, store.volume.claim." }}
{{- end }}
{{- if and (hasPrefix "/" .Values.store.url) (not $folder) }}
{{- fail "store.url is a folder, but no volume holds it: set store.volume.claim or store.volume.hostPath. What is written into the pod alone is lost with it." }}
{{- end }}
{{- if and $folder (not (hasPrefix (printf "%s/" $volume.mountPath) .Values.store.url)) }}
{{- fail (printf "store.url must be a folder below store.volume.mountPath (%s), since a volume is to hold it." $volume.mountPath) }}
{{- end }}
{{- if and .Values.gpu.driverFolder (not .Values.security.privileged) }}
{{- fail "gpu.driverFolder needs security.privileged: without a runtime class nothing but that gives the agent the devices of the GPUs." }}
{{- end }}
{{- end }}

{{- /* The objects of one file of base/, in the release's namespaces: {"objects": [...]}. */}}
{{- define "agents.objects" }}
{{- $text := .root.Files.Get (printf "base/%s.yaml" .file) }}
{{- /* Both are marked before either is named: one may have the other's old name. */}}
{{- $text = $text | replace "namespace: gpu-reclaim\n" "namespace: @agents@\n" }}
{{- $text = $text | replace "namespace: jupyterhub\n" "namespace: @hub@\n" }}
{{- $text = $text | replace "metadata.name: jupyterhub\n" "metadata.name: @hub@\n" }}
{{- $text = $text | replace "@agents@" .root.Release.Namespace | replace "@hub@" .root.Values.hub.namespace }}
{{- $objects := list }}
{{- range regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml . }}
{{- if hasKey $object "Error" }}{{ fail (printf "base/%s.yaml: %s" $.file $object.Error) }}{{ end }}
{{- if ne $object.kind "Namespace" }}{{ $objects = append $objects $object }}{{ end }}
{{- end }}
{{- dict "objects" $objects | toYaml }}
{{- end }}

{{- define "agents.suffixed" }}
{{- .name }}{{ if .root.Values.realm }}-{{ .root.Values.realm }}{{ end }}
{{- end }}

{{- define "agents.image" }}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* seLinuxOptions of the agent's container. */}}
{{- define "agents.seLinux" }}
{{- $options := .Values.security.seLinux }}
{{- if and .Values.openshift (not $options) }}{{ $options = dict "type" "spc_t" }}{{ end }}
{{- $options | toYaml }}
{{- end }}
