{{- /* What a schema cannot say: refused with a sentence. */}}
{{- define "agents.check" }}
{{- $store := .Values.store }}
{{- $volume := $store.volume }}
{{- if not .Values.image.registry }}
{{- fail "image.registry is needed: where the images are that etc/containers builds, as registry.example.org/team." }}
{{- end }}
{{- if not (regexMatch "^([a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?)?$" .Values.realm) }}
{{- fail (printf "realm has up to 30 lower-case letters, digits and hyphens, since names of objects end with it; it is %q." .Values.realm) }}
{{- end }}
{{- if eq .Release.Namespace .Values.hub.namespace }}
{{- fail (printf "The agents must not be in the Hub's namespace (%s): they are root on their nodes, and users' pods are there. Install the chart into another one." .Values.hub.namespace) }}
{{- end }}
{{- $places := list }}
{{- range $name, $given := dict "url" $store.url "volume.create" $volume.create "volume.claim" $volume.claim "volume.hostPath" $volume.hostPath "onEachNode" $store.onEachNode }}
{{- if $given }}{{ $places = append $places (printf "store.%s" $name) }}{{ end }}
{{- end }}
{{- if not $places }}
{{- fail "A place for suspended sessions is needed: store.url (an object store), store.volume.create, store.volume.claim, store.volume.hostPath, or store.onEachNode to try it." }}
{{- end }}
{{- if gt (len $places) 1 }}
{{- fail (printf "Suspended sessions are in one place, and these are more: %s." (join ", " $places)) }}
{{- end }}
{{- if and $store.url (not (regexMatch "^(s3|gs|az)://[^ ]+$" $store.url)) }}
{{- fail (printf "store.url begins with s3://, gs:// or az://, not %q; a folder is store.volume." $store.url) }}
{{- end }}
{{- if and (or $store.options $store.optionsSecret) (not $store.url) }}
{{- fail "store.options and store.optionsSecret are for an object store (store.url)." }}
{{- end }}
{{- if and .Values.gpu.driverFolder (not .Values.security.privileged) }}
{{- fail "gpu.driverFolder needs security.privileged: without a runtime class nothing but that gives the agent the devices of the GPUs." }}
{{- end }}
{{- end }}

{{- define "agents.suffixed" }}
{{- .name }}{{ with .root.Values.realm }}-{{ . }}{{ end }}
{{- end }}

{{- /* Of a list: the root, and "agent" or "hub". */}}
{{- define "agents.image" }}
{{- $root := index . 0 }}
{{- $root.Values.image.registry }}/jupyterhub-gpu-reclaim-{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- define "agents.pullSecrets" }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* seLinuxOptions of the agent's container. */}}
{{- define "agents.seLinux" }}
{{- $options := .Values.security.seLinux }}
{{- if and .Values.openshift (not $options) }}{{ $options = dict "type" "spc_t" }}{{ end }}
{{- $options | toYaml }}
{{- end }}

{{- /* Where agents run, and what brings the store to them. */}}
{{- define "agents.nodes" }}
{{- with and .Values.gpu.enabled .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- toYaml .Values.tolerations | nindent 2 }}
{{- end }}

{{- define "agents.state" }}
{{- include "agents.suffixed" (dict "root" . "name" .Values.stateFolder) }}
{{- end }}

{{- /* The claim, where the store is on one. */}}
{{- define "agents.claim" }}
{{- if .Values.store.volume.create }}gpu-reclaim-store{{ else }}{{ .Values.store.volume.claim }}{{ end }}
{{- end }}

{{- define "agents.onVolume" }}
{{- if or (include "agents.claim" .) .Values.store.volume.hostPath }}yes{{ end }}
{{- end }}

{{- define "agents.storeUrl" }}
{{- if .Values.store.onEachNode }}/var/lib/jupyterhub-gpu-reclaim/store
{{- else if include "agents.onVolume" . }}/var/lib/gpu-reclaim-store/sessions
{{- else }}{{ .Values.store.url }}{{ end }}
{{- end }}

{{- define "agents.storeMounts" }}
{{- if not .Values.store.onEachNode }}
- {name: master-keys, mountPath: /etc/gpu-reclaim/master-keys, readOnly: true}
{{- end }}
{{- if include "agents.onVolume" . }}
- {name: store, mountPath: /var/lib/gpu-reclaim-store}
{{- else if .Values.store.optionsSecret }}
- {name: store, mountPath: /etc/gpu-reclaim/store, readOnly: true}
{{- end }}
{{- end }}

{{- define "agents.storeVolumes" }}
{{- if not .Values.store.onEachNode }}
# If you lose this Secret, you lose every suspended session: keep a copy elsewhere.
- name: master-keys
  secret: {secretName: {{ .Values.secrets.masterKeys }}, defaultMode: 0400}
{{- end }}
{{- if include "agents.claim" . }}
- name: store
  persistentVolumeClaim: {claimName: {{ include "agents.claim" . }}}
{{- else if .Values.store.volume.hostPath }}
- name: store
  hostPath: {path: {{ .Values.store.volume.hostPath }}, type: Directory}
{{- else if .Values.store.optionsSecret }}
# options.json: the object store's login and options, as obstore names them.
- name: store
  secret: {secretName: {{ .Values.store.optionsSecret }}, defaultMode: 0400}
{{- end }}
{{- end }}

{{- /* Of a pod without rights; OpenShift gives each namespace its own users. */}}
{{- define "agents.restricted" }}
securityContext:
  runAsNonRoot: true
  {{- if not .Values.openshift }}
  runAsUser: 65534
  fsGroup: 65534
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}
