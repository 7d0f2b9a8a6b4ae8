{{- /* gpupool.labels: what all objects of a component have. (dict "root" $ "component" NAME) */ -}}
{{- define "gpupool.labels" -}}
app.kubernetes.io/name: gpupool
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "gpupool.selector" -}}
app.kubernetes.io/name: gpupool
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpupool.image" -}}
{{ .root.Values.images.registry }}gpupool-{{ .name }}:{{ .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "gpupool.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* The user of the images, and no more rights than a process has by itself. */ -}}
{{- define "gpupool.pod" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "gpupool.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* What the container setup alone has of the manager's pod: a way to the API server. */ -}}
{{- define "gpupool.account" -}}
projected:
  defaultMode: 0440
  sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: 3600
    - configMap:
        name: kube-root-ca.crt
        items:
          - {key: ca.crt, path: ca.crt}
    - downwardAPI:
        items:
          - path: namespace
            fieldRef: {fieldPath: metadata.namespace}
{{- end -}}

{{- /* What webhook and controller read, again and again: settings, certificate, token. */ -}}
{{- define "gpupool.files" -}}
- name: config
  configMap: {name: gpupool-kubernetes}
- name: tls
  secret: {secretName: gpupool-tls, defaultMode: 0440}
- name: pool
  secret: {secretName: gpupool-pool, defaultMode: 0440}
- name: tmp
  emptyDir: {}
{{- end -}}

{{- define "gpupool.mounts" -}}
- {name: config, mountPath: /etc/gpupool/config, readOnly: true}
- {name: tls, mountPath: /etc/gpupool/tls, readOnly: true}
- {name: pool, mountPath: /etc/gpupool/pool, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- /* gpupool.toml: a map as TOML. What JSON has of scalars and lists, TOML has, too; tables come last. */ -}}
{{- define "gpupool.toml" -}}
{{- range $key, $value := . }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}

[{{ $key }}]
{{- range $name, $inner := $value }}
{{ toJson $name }} = {{ toJson $inner }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* A map of labels as the API server takes it in a query. */ -}}
{{- define "gpupool.nodeSelector" -}}
{{- $parts := list }}
{{- range $key, $value := . }}
{{- $parts = append $parts (printf "%s=%s" $key $value) }}
{{- end }}
{{- join "," $parts }}
{{- end -}}

{{- define "gpupool.settings" -}}
listen = "0.0.0.0:8443"
pool = "https://gpupool-manager.{{ .Release.Namespace }}.svc:7780"
pool_fingerprint_file = "/etc/gpupool/pool/fingerprint"
image = {{ include "gpupool.image" (dict "root" . "name" "kubernetes") | toJson }}
credential_url = "https://gpupool-controller.{{ .Release.Namespace }}.svc:8443"
credential_ca = "/etc/gpupool/tls/ca.crt"
controller_account = "system:serviceaccount:{{ .Release.Namespace }}:gpupool-controller"
log_json = true
{{- end -}}
