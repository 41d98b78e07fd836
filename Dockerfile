# Horovod for PyTorch and TensorFlow, with Gloo and Open MPI, and this package: docs/deployment.md.
#
#   docker build -t horovod-gqsgd .
#   docker run --rm horovod-gqsgd horovodrun -np 2 python examples/pytorch_digits.py
#
# BASE is any Debian or Ubuntu with Python 3.11, its own or apt's. RUNTIME may be a smaller one of
# the same release: of NVIDIA's images BASE needs `devel`, which has compiler and NCCL.
ARG BASE=python:3.11-slim-bookworm
ARG RUNTIME=${BASE}


FROM ${BASE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PATH=/opt/venv/bin:${PATH}
# apt's versions are those of the base's release; pin the base by its digest to hold them still.
# hadolint ignore=DL3008
RUN apt-get update; \
    apt-get install -y --no-install-recommends cmake g++ libopenmpi-dev make openmpi-bin; \
    command -v python3.11 \
      || apt-get install -y --no-install-recommends python3.11-dev python3.11-venv; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt ./
# Pins of the development environment, but for CUDA's: those follow from the frameworks' builds.
RUN sed -E '/^(cuda|nvidia)-/d' constraints.txt > /opt/constraints.txt; \
    python3.11 -m venv /opt/venv
ENV PIP_CONSTRAINT=/opt/constraints.txt
ARG TORCH=torch==2.13.0+cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TENSORFLOW=tensorflow-cpu
# hadolint ignore=DL3013
RUN pip install setuptools wheel; \
    pip install ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} "${TORCH}" "${TENSORFLOW}"
COPY scripts/build_horovod.py scripts/
COPY scripts/horovod_build/ scripts/horovod_build/
ARG HOROVOD_GPU_OPERATIONS
# Wheels are kept in /wheels: mount a folder there to use them again.
ENV HOROVOD_WHEEL_CACHE=/wheels
RUN python scripts/build_horovod.py --torch --tensorflow --mpi yes
COPY setup.py pyproject.toml README.md LICENSE ./
COPY cuda_kernels/ cuda_kernels/
COPY horovod_gqsgd/ horovod_gqsgd/
ARG EXTRAS
# What is removed serves compilers and the frameworks' own developers.
# hadolint ignore=DL3013
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/wheel .; \
    pip install "$(echo /tmp/wheel/*.whl)${EXTRAS:+[${EXTRAS}]}" matplotlib rich scikit-learn; \
    for unused in tensorflow/include torch/include torch/test; do \
      rm -r "/opt/venv/lib/python3.11/site-packages/${unused}"; done


FROM ${RUNTIME} AS runtime
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN export DEBIAN_FRONTEND=noninteractive; \
    apt-get update; \
    apt-get install -y --no-install-recommends \
      libgomp1 openmpi-bin openssh-client openssh-server tini; \
    command -v python3.11 || apt-get install -y --no-install-recommends python3.11; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*; \
    useradd --create-home --uid 1000 --shell /bin/bash horovod; \
    install -d -o horovod /keys /output
COPY --from=build /opt/venv /opt/venv
# Modes whatever the checkout's: ssh refuses a configuration that a group may write.
COPY --chmod=644 docker/ssh_config /etc/ssh/ssh_config.d/horovod.conf
COPY --chmod=644 docker/sshd_config /etc/ssh/sshd_horovod
COPY --chmod=755 docker/entrypoint docker/health /usr/local/bin/
COPY examples/ /home/horovod/examples/
COPY benchmarks/ /home/horovod/benchmarks/
# Open MPI may not read another process's memory in a container, and need not try.
ENV PATH=/opt/venv/bin:${PATH} PYTHONUNBUFFERED=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
USER 1000
WORKDIR /home/horovod
EXPOSE 2222
HEALTHCHECK --interval=10s --timeout=10s --start-period=5s CMD ["health"]
ENTRYPOINT ["tini", "--", "entrypoint"]
CMD ["worker"]
LABEL org.opencontainers.image.title="horovod-gqsgd" \
      org.opencontainers.image.description="Horovod with Global-QSGD gradient compression" \
      org.opencontainers.image.licenses="Apache-2.0"


# The image and what its tests need, for `make image-test`.
FROM runtime AS test
USER 0
COPY constraints.txt docker-compose.yml Dockerfile pyproject.toml ./
COPY deploy/ deploy/
COPY docs/cuda-kernels.md docs/
COPY docker/ docker/
COPY tests/ tests/
COPY scripts/ scripts/
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --constraint constraints.txt "horovod-gqsgd[cuda12,dev]"
USER 1000


FROM runtime AS image
