"""Runs clang-tidy on the native core: `python csrc/tidy.py [FILE.cpp ..]`, with `pip install clang-tidy`.

The checks are in csrc/.clang-tidy. All files take a minute or two; commits do not wait for them.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++17", "-O2", "-march=x86-64-v3", "-fopenmp"]


def main(arguments: list[str]) -> int:
    sources = list(map(Path, arguments)) or sorted(HERE.glob("*.cpp"))
    with tempfile.TemporaryDirectory() as folder:
        # The one header that clang's own folder lacks; with all of gcc's it would read gcc's intrinsics.
        header = subprocess.check_output(["g++", "-print-file-name=include/omp.h"], text=True).strip()
        (Path(folder) / "omp.h").symlink_to(header)

        def tidy(source: Path) -> int:
            command = ["clang-tidy", "--quiet", source, "--", *FLAGS, "-isystem", folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                print(done.stdout, flush=True)
            return done.returncode

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return max(threads.map(tidy, sources))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
