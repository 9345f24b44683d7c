#!/usr/bin/env bash
# Write what each overlay comes to into deploy/k8s/rendered/, which is committed: a change is seen before it is applied.
# KUBECTL may name a kubectl of version 1.27 or newer.
set -euo pipefail
cd "$(dirname "$0")"
for overlay in overlays/*/; do
  name=$(basename "$overlay")
  {
    echo "# kubectl kustomize deploy/k8s/overlays/$name (deploy/k8s/render.sh writes this file)"
    "${KUBECTL:-kubectl}" kustomize "$overlay"
  } >"rendered/$name.yaml.new"
  mv "rendered/$name.yaml.new" "rendered/$name.yaml"
done
