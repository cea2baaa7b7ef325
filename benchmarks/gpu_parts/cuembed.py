"""NVIDIA's header-only cuEmbed, from a checkout that the user names; built by nvcc when it is needed."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

_SOURCE = """
#include <cstdint>
#include "cuembed/include/embedding_lookup.cuh"

extern "C" void lookup(
    const float* table, int width, const std::int64_t* rows, int count, float* out, void* stream) {
  const std::int64_t* no_offsets = nullptr;
  const float* no_weights = nullptr;
  cuembed::EmbeddingForward(table, width, rows, no_offsets, no_weights, count, 1,
                            cuembed::CombineMode::kSum, out, static_cast<cudaStream_t>(stream));
}
"""


def why_not(checkout: Path | None, on_gpu: bool) -> str | None:
    """Why it cannot be measured; None: it can."""
    if checkout is None:
        return "no --cuembed DIR"
    if not (checkout / "cuembed" / "include" / "embedding_lookup.cuh").exists():
        return f"{checkout} has no cuembed/include/embedding_lookup.cuh"
    if not on_gpu:
        return "no GPU"
    return None if shutil.which("nvcc") else "no nvcc"


def build(checkout: Path) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Returns (table [R, D] float32, rows [N] int64, out [N, D]) -> None, on the present stream."""
    folder = Path(tempfile.mkdtemp(prefix="cuembed-"))
    source, library = folder / "lookup.cu", folder / "lookup.so"
    source.write_text(_SOURCE)
    major, minor = torch.cuda.get_device_capability()
    options = f"-O3 -std=c++17 -arch=sm_{major}{minor} -shared -Xcompiler -fPIC"
    command = ["nvcc", *options.split(), f"-I{checkout}", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise RuntimeError(f"nvcc: {first.strip()}")
    function = ctypes.CDLL(str(library)).lookup

    def lookup(table: Tensor, rows: Tensor, out: Tensor) -> None:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (table, rows, out)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        function(pointers[0], table.shape[1], pointers[1], len(rows), pointers[2], stream)

    return lookup
