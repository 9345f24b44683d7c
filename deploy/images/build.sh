#!/usr/bin/env bash
# Build every image of Hanse, or those that are named: deploy/images/build.sh [TARGET…]
#
# ENGINE (podman or docker), REPOSITORY (default localhost) and VERSION (default that of pyproject.toml) may be set;
# BUILD_ARGS is handed on, for instance BUILD_ARGS="--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu".
set -euo pipefail
cd "$(dirname "$0")/../.."
ENGINE=${ENGINE:-$(command -v podman || command -v docker)}
REPOSITORY=${REPOSITORY:-localhost}
VERSION=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml | head -n 1)}
TARGETS=("$@")
if [ ${#TARGETS[@]} -eq 0 ]; then
  TARGETS=(coordinator aggregator dashboard agent agent-torch dev-store)
fi
for target in "${TARGETS[@]}"; do
  # shellcheck disable=SC2086 # BUILD_ARGS holds several words
  "$ENGINE" build ${BUILD_ARGS:-} --file deploy/images/Containerfile --target "$target" \
    --tag "$REPOSITORY/hanse-$target:$VERSION" .
done
