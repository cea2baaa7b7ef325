"""Other people's models: any PyTorch model gets packed lookups and row updates, in two lines."""

from torch._dynamo import list_backends, register_backend

from hotrows.acceleration.accelerate import accelerate, restore
from hotrows.acceleration.explain import Explanation, explain
from hotrows.acceleration.graph import hotrows
from hotrows.acceleration.lookahead import lookahead

__all__ = ["Explanation", "accelerate", "explain", "lookahead", "restore"]

# Where hotrows is installed, dynamo knows the backend from its entry point.
if "hotrows" not in list_backends(exclude_tags=()):
    register_backend(name="hotrows")(hotrows)
