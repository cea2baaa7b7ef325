"""The kernels in Triton's interpreter, and the same claims on a device where there is one."""

import importlib.util

import pytest
import torch

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]

_HAS_CUDA = torch.cuda.is_available()


def pytest_configure():
    if collect_ignore_glob or _HAS_CUDA:
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        """Triton 3.6 makes an index of an array of one element, which NumPy 2.4 refuses."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(_HAS_CUDA, reason="kernels are compiled here")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def device(request):
    """Where the kernels run. On a device, inputs are other ones every time."""
    if request.param == "cuda":
        torch.seed()
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def poisoned():
    """Memory comes filled with NaN and the largest integers, so that nothing may stay unwritten."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
