# argap in a container, for processors or for GPUs:
#   docker build --build-arg TORCH=cpu --tag argap .     # or TORCH=cuda
#   docker run --rm -it --user "$(id -u)" -v "$PWD":/work argap score base_conv --ref attention
#   docker run --rm -it --gpus all -v "$PWD":/work argap kernels
FROM python:3.11-slim-bookworm

ARG TORCH=cpu
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# Triton compiles its launchers with a C compiler.
# hadolint ignore=DL3008
RUN if [[ "$TORCH" = cuda ]]; then \
      apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi

WORKDIR /opt/argap
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY argap argap
COPY bigram_index bigram_index
COPY kernels kernels
COPY reports reports
RUN if [[ "$TORCH" = cpu ]]; then \
      pip install --no-cache-dir --constraint constraints.txt torch --index-url https://download.pytorch.org/whl/cpu; \
    fi \
    && pip install --no-cache-dir --constraint constraints.txt '.[score]'

# Any other user, as of `docker run --user "$(id -u)"`, may keep caches there as well.
RUN useradd --create-home --uid 1000 argap && chmod 1777 /home/argap
ENV HOME=/home/argap
USER 1000
WORKDIR /work
ENTRYPOINT ["argap"]
CMD ["--help"]
