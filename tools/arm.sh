#!/usr/bin/env bash
# Compile the operators for 64-bit ARM on an x86 machine with Debian or Ubuntu, and test them in
# an emulator: tools/arm.sh FOLDER [arguments of pytest]
#
# FOLDER gets Debian's Python and torch for ARM (6 GB), which later calls use again. The compiler
# runs natively. Needs: apt-get install mmdebstrap qemu-user-static g++-aarch64-linux-gnu
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "$1")
shift
python=${PYTHON:-.venv/bin/python}
root=$target/root packages=$target/packages library=$target/library
missing=()
for program in mmdebstrap qemu-aarch64-static aarch64-linux-gnu-g++; do
  command -v $program >/dev/null || missing+=("$program")
done
if ((${#missing[@]})); then
  echo "not found: ${missing[*]}: install mmdebstrap qemu-user-static g++-aarch64-linux-gnu" >&2
  exit 1
fi
mkdir -p "$target"

if [ ! -e "$root/.complete" ]; then
  rm -rf "$root"
  # Unpacked only: Python and its libraries need no configuration, which would be emulated.
  mmdebstrap --quiet --variant=extract --architectures=arm64 \
    --include=python3.11,libgomp1,libstdc++6 bookworm "$root"
  # torch identifies the processor by these files. The emulator shows the machine's own ones
  # otherwise, and torch fails on the names of an x86 processor.
  identification=$root/sys/devices/system/cpu/cpu0/regs/identification
  mkdir -p "$root/proc" "$identification"
  printf '%s\n' "processor : 0" "Features : fp asimd atomics fphp asimdhp cpuid asimdrdm" \
    "CPU implementer : 0x41" "CPU architecture: 8" "CPU variant : 0x3" "CPU part : 0xd0c" \
    "CPU revision : 1" >"$root/proc/cpuinfo"
  echo 0x00000000413fd0c1 >"$identification/midr_el1"
  touch "$root/.complete"
fi

if [ ! -e "$packages/.complete" ]; then
  rm -rf "$packages"
  version=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])')
  vision=$("$python" -c 'import torchvision; print(torchvision.__version__.split("+")[0])')
  platforms=(--platform manylinux2014_aarch64)
  for minor in {17..36}; do platforms+=(--platform "manylinux_2_${minor}_aarch64"); done
  "$python" -m pip install --quiet --target "$packages" --python-version 3.11 \
    "${platforms[@]}" --only-binary=:all: "torch==$version" "torchvision==$vision" \
    numpy pillow pycocotools pyyaml yacs tqdm pytest hypothesis setuptools
  touch "$packages/.complete"
fi

echo "=== compile"
CXX=aarch64-linux-gnu-g++ CC=aarch64-linux-gnu-g++ LDSHARED="aarch64-linux-gnu-g++ -shared" \
  LDFLAGS="-L$packages/torch/lib" DETLITE_CUDA=0 DETLITE_KERNELS=1 \
  "$python" setup.py --quiet build_ext --build-temp "$target/objects" --build-lib "$library"
# setup.py writes only the compiled module there.
find detlite -name '*.py' -exec cp --parents --target-directory "$library" {} +

# The folder of the tests comes last: its detlite has no compiled module for ARM.
emulate() {
  PYTHONHOME=$root/usr PYTHONPATH=$library:$packages:$PWD OMP_NUM_THREADS=1 DETLITE_CACHE=$target/cache \
    qemu-aarch64-static -cpu neoverse-n1 -L "$root" "$root/usr/bin/python3.11" -P "$@"
}
echo "=== detlite doctor"
emulate -m detlite doctor
echo "=== tests of operators"
# The first ones compile code. The others start a process, which needs an emulator registered with
# the kernel, or compare results to the last bit with pycocotools and torchvision, whose wheels for
# ARM round products and sums once and so differ from their own results on x86.
left_out=()
for name in cuda_on_cpu hip kernels plain_versions; do
  left_out+=("--ignore=tests/ops/test_$name.py")
done
for name in dispatch.py::test_operators_that_are_imported_on_demand_are_replaced_too \
  "evaluation.py::test_polygons_are_encoded_like_pycocotools[encode_polygons-90]" \
  "masks.py::test_corners_on_the_grid[cpu-default]" \
  "roi_align.py::test_whole_cells_need_no_extra_sample[cpu-default]"; do
  left_out+=("--deselect=tests/ops/test_$name")
done
emulate -m pytest -q -m "not slow" -o pythonpath= -p no:cacheprovider "${left_out[@]}" \
  "${@:-tests/ops}"
