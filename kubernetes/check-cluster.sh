#!/usr/bin/env bash
# Check a cluster in ten minutes: install gpupool, run a CUDA program in a pod, resize its lease,
# drain a GPU host, and remove all of it again.
#
#   kubernetes/check-cluster.sh [--soft] [--registry PREFIX] [--tag TAG] [--keep] [--json]
#
#   --soft       servers of soft GPUs, for a cluster without GPUs
#   --registry   what stands before the images' names, e.g. registry.example/gpupool/
#   --tag        the images' tag; else the chart's version
#   --installed  gpupool is there already: do not install it, and do not remove it
#   --keep       leave what was installed, and the pods
#   --json       one JSON object a line, for programs
#
# It needs kubectl, and helm unless gpupool is installed; the current context is the cluster that is
# checked. Each step is a line; the first that fails ends it, with what it saw. Exit code 0: all held.
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
NAMESPACE=${GPUPOOL_NAMESPACE:-gpupool-system}
TENANT=gpupool-check
STEP_SECONDS=${GPUPOOL_CHECK_SECONDS:-300}
soft='' registry='' tag='' installed='' keep='' json=''
began=$SECONDS
seen=''

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"
}

while [ $# -gt 0 ]; do
  case $1 in
    --soft) soft=1 ;;
    --registry) registry=${2:?--registry wants a prefix}; shift ;;
    --tag) tag=${2:?--tag wants a tag}; shift ;;
    --installed) installed=1 ;;
    --keep) keep=1 ;;
    --json) json=1 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "check-cluster: unknown option: $1" >&2; exit 2 ;;
  esac
  shift
done

# Text as a JSON string.
quoted() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  printf '"%s"' "$text"
}

# tell ok|failed STEP TEXT
tell() {
  if [ -n "$json" ]; then
    printf '{"step": %s, "result": "%s", "seconds": %d, "saw": %s}\n' \
      "$(quoted "$2")" "$1" $((SECONDS - began)) "$(quoted "$3")"
  else
    printf '%-6s %4ds  %-9s %s\n' "$1" $((SECONDS - began)) "$2" "$3"
  fi
}

# step NAME FUNCTION: what it says in $seen is shown; if it fails, that ends the check.
step() {
  seen=''
  if "$2"; then
    tell ok "$1" "$seen"
  else
    tell failed "$1" "$seen"
    exit 1
  fi
}

# saw COMMAND...: its output is what the step saw.
saw() {
  local status=0
  seen=$("$@" 2>&1) || status=$?
  return "$status"
}

# until_is WANTED COMMAND...: until its output is that.
until_is() {
  local wanted=$1 end=$((SECONDS + STEP_SECONDS))
  shift
  while [ "$SECONDS" -lt "$end" ]; do
    if saw "$@" && [ "$seen" = "$wanted" ]; then
      return 0
    fi
    sleep "${GPUPOOL_CHECK_PAUSE:-2}"
  done
  seen="not '$wanted' within $STEP_SECONDS s, but: $seen"
  return 1
}

# The command gpupool, as an admin, in the manager's pod: the token does not leave it.
gpupool() {
  kubectl exec --namespace "$NAMESPACE" statefulset/gpupool-manager --container manager -- env \
    GPUPOOL_POOL=https://127.0.0.1:7780 \
    GPUPOOL_POOL_FINGERPRINT=/var/lib/gpupool/state/tls.fingerprint \
    gpupool "$@" --token-file /var/lib/gpupool/state/admin.token
}

pod_is() {
  kubectl get pod "$1" --namespace "$TENANT" --output "jsonpath={$2}"
}

# --- steps ------------------------------------------------------------------------------------

check_tools() {
  saw kubectl version --output yaml || return 1
  local minor
  minor=$(sed -n '/serverVersion/,$s/^ *minor: "\([0-9]*\).*/\1/p' <<<"$seen")
  seen="Kubernetes 1.${minor:-?}"
  if [ "${minor:-0}" -lt 30 ]; then
    seen="$seen; gpupool needs 1.30"
    return 1
  fi
  if [ -z "$installed" ] && ! command -v helm >/dev/null; then
    seen="helm is not in PATH; install it, or give --installed"
    return 1
  fi
}

install() {
  local options=(--namespace "$NAMESPACE" --create-namespace)
  [ -z "$soft" ] || options+=(--set server.driver=soft)
  [ -z "$registry" ] || options+=(--set "images.registry=$registry")
  [ -z "$tag" ] || options+=(--set "images.tag=$tag")
  saw helm upgrade --install gpupool "$HERE/chart" "${options[@]}" || return 1
  seen="the release gpupool in $NAMESPACE"
}

wait_for_all() {
  local each
  for each in statefulset/gpupool-manager deployment/gpupool-webhook deployment/gpupool-controller; do
    saw kubectl rollout status "$each" --namespace "$NAMESPACE" --timeout "${STEP_SECONDS}s" || return 1
  done
  seen="manager, webhook and controller are ready"
}

hosts_ready() {
  gpupool node list --state ready --json | grep -c '"name":' || true
}

wait_for_hosts() {
  local end=$((SECONDS + STEP_SECONDS))
  while [ "$SECONDS" -lt "$end" ]; do
    if saw hosts_ready && [ "$seen" -gt 0 ] 2>/dev/null; then
      seen="$seen GPU hosts have joined"
      return 0
    fi
    sleep "${GPUPOOL_CHECK_PAUSE:-2}"
  done
  seen="no GPU host joined within $STEP_SECONDS s; see the logs of the pods gpupool-server-*"
  return 1
}

make_tenant() {
  saw kubectl create namespace "$TENANT" || return 1
  saw gpupool tenant create "$TENANT" --gpus 2 --memory 4GiB --compute 200% || return 1
  seen="the tenant and the namespace $TENANT"
}

# pod NAME COMMAND-AS-JSON
pod() {
  kubectl apply --namespace "$TENANT" --filename - <<EOF
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: ${registry}gpupool-client:${tag:-$(sed -n 's/^appVersion: "\(.*\)"/\1/p' "$HERE/chart/Chart.yaml")}
      command: $2
      resources:
        limits: {gpupool.io/gpu: 1, gpupool.io/memory: 256Mi, gpupool.io/compute: 10}
EOF
}

run_program() {
  saw pod program '[python, /usr/local/share/gpupool/example.py]' || return 1
  until_is Succeeded pod_is program .status.phase || return 1
  saw kubectl logs program --namespace "$TENANT" --container main || return 1
  seen=${seen##*$'\n'}
  [[ $seen == *": OK" ]]
}

lease_of() {
  pod_is holder '.metadata.annotations.gpupool\.io/lease'
}

resize() {
  local lease
  saw pod holder '[sleep, "3600"]' || return 1
  until_is Running pod_is holder .status.phase || return 1
  saw lease_of || return 1
  lease=$seen
  if [ -z "$lease" ]; then
    seen="the pod runs without a lease"
    return 1
  fi
  saw gpupool lease resize "$lease" --memory 512MiB || return 1
  seen="$lease has 512MiB in place of 256MiB"
}

node_of() {
  gpupool lease show "$1" --json | sed -n 's/.*"node": *"\([^"]*\)".*/\1/p' | head -n 1
}

drain() {
  local node
  saw lease_of && saw node_of "$seen" || return 1
  node=$seen
  saw gpupool node drain "$node" || return 1
  saw pod_is holder .status.phase || return 1
  if [ "$seen" != Running ]; then
    seen="the pod on $node is $seen: draining must end no program"
    return 1
  fi
  saw gpupool node open "$node" || return 1
  seen="$node took nothing new, its program went on, and it is open again"
}

no_leases() {
  gpupool lease list --tenant "$TENANT" --state active --json | tr -d ' \n'
}

remove() {
  saw kubectl delete namespace "$TENANT" --timeout "${STEP_SECONDS}s" || return 1
  until_is '[]' no_leases || return 1
  saw gpupool tenant remove "$TENANT" || return 1
  if [ -z "$installed" ]; then
    saw helm uninstall gpupool --namespace "$NAMESPACE" --wait || return 1
  fi
  seen="pods and tenant are gone, and no lease is left"
}

step cluster check_tools
[ -n "$installed" ] || step install install
step ready wait_for_all
step hosts wait_for_hosts
step tenant make_tenant
step program run_program
step resize resize
step drain drain
[ -n "$keep" ] || step remove remove
[ -n "$json" ] || echo "check-cluster: OK"
