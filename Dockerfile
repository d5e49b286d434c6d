# detlite with its kernels, for a CPU:
#   docker build -t detlite:0.1.0 .
#   docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" --shm-size 2g detlite:0.1.0 init --data photos
# For GPUs, choose images and wheels of one CUDA version, and run with --gpus all:
#   docker build -t detlite:0.1.0 --build-arg BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04 \
#       --build-arg INDEX=https://download.pytorch.org/whl/cu130 .
ARG BASE=debian:bookworm-slim
FROM $BASE
ARG INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=pretrained,report,serve
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
# A user without a home folder keeps caches in /tmp.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp
RUN pip install --no-cache-dir torch torchvision --index-url "$INDEX" \
    && pip install --no-cache-dir "setuptools>=77" ninja
COPY . /src
RUN pip install --no-cache-dir --no-build-isolation "/src[$EXTRAS]"
WORKDIR /data
ENTRYPOINT ["detlite"]
CMD ["--help"]
