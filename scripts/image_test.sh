#!/usr/bin/env bash
# Build the image and run what is in it, without an engine for containers: `sudo make image-test`.
#
#   BASE=…           the base to build on; default: a Debian 12 that debootstrap makes
#   BUILD_OPTIONS=…  further options of `buildah build`, such as mounts for packages and wheels
#   PYTHON=…         a Python with what tests/cluster needs; default: that of .venv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }
skip() { echo "image-test is skipped: $*"; exit 0; }
need() { command -v "$1" >/dev/null || skip "no $1: apt-get install $1 (Debian, Ubuntu)"; }
[ "$(id -u)" = 0 ] || skip "it needs root, for debootstrap and for chroot; try sudo"
need buildah
[ -n "${BASE:-}" ] || need debootstrap

export BUILDAH_ISOLATION=chroot
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
IMAGE=localhost/horovod-gqsgd
read -ra options <<<"${BUILD_OPTIONS:-}"
made=$(mktemp -d)
containers=()
clean() {
    for each in "${containers[@]}"; do buildah rm "$each" >/dev/null; done
    rm -rf "$made"
}
trap clean EXIT

debian() {  # a base with nothing but Debian in it
    buildah inspect --type image "$1" >/dev/null 2>&1 && return
    debootstrap --variant=minbase --include=ca-certificates bookworm "$made/debian" >/dev/null
    rm -f "$made"/debian/var/cache/apt/archives/*.deb
    container=$(buildah from scratch)
    containers+=("$container")
    buildah add -q "$container" "$made/debian" / >/dev/null
    buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    buildah commit -q "$container" "$1" >/dev/null
}

# Docker's format: the other one has no health check. Host names as here: Gloo looks them up, and
# with chroot nobody tells /etc/hosts of others.
build() {  # stage, name
    buildah build --format docker --layers --force-rm --build-arg BASE="$base" --target "$1" \
        --tag "$2" --uts host "${options[@]}" .
}

inside() {  # a command by the way of the image's entry point
    buildah run --uts host --env TINI_SUBREAPER=1 "$1" -- tini -- entrypoint "${@:2}"
}

step "base"
base=${BASE:-localhost/debian-bookworm}
[ -n "${BASE:-}" ] || debian "$base"
step "build"
build image "$IMAGE"
build test "$IMAGE:test"
buildah images --format '{{.Name}}:{{.Tag}} {{.Size}}' | grep "^$IMAGE:"
image=$(buildah from "$IMAGE")
tests=$(buildah from "$IMAGE:test")
containers+=("$image" "$tests")

step "what is in it"
inside "$image" horovodrun --check-build
inside "$image" bash -euc '
    [ "$(id -u)" = 1000 ]
    python -c "import torch; print(\"torch\", torch.__version__)"
    ! compgen -G "/etc/ssh/ssh_host_*"  # keys are made at start, or mounted
    ! command -v g++ cmake'

step "smoke test"
inside "$image" horovodrun -np 2 python examples/pytorch_digits.py

step "the compose file's demo and the MPI job on virtual hosts"
IMAGE_ROOT=$(buildah mount "$image") "$PYTHON" -m pytest -v tests/cluster/test_containers.py

step "unit tests"
inside "$tests" python -m tests.unit
step "all good"
