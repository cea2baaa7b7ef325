"""What glibc's malloc does with freed memory: by default a large block goes back to the system."""

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Spares every large activation its mmap, its page faults and its munmap."""
    mallopt = ctypes.CDLL(None).mallopt
    settings = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 64 << 20}
    for parameter, value in settings.items():
        assert mallopt(parameter, value) == 1, f"mallopt refused {parameter} = {value}"
