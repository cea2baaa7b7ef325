"""Other people's models: any PyTorch model gets packed lookups and row updates, in two lines."""

from torch._dynamo import list_backends, register_backend

from hotrows.capture.acceleration import accelerate, restore
from hotrows.capture.ahead import lookahead
from hotrows.capture.explanation import Explanation, explain
from hotrows.capture.graph import hotrows

__all__ = ["Explanation", "accelerate", "explain", "lookahead", "restore"]

# Where hotrows is installed, dynamo knows the backend from its entry point.
if "hotrows" not in list_backends(exclude_tags=()):
    register_backend(name="hotrows")(hotrows)
