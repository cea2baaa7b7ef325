"""Other people's models: any PyTorch model gets packed lookups and row updates, in two lines."""

from hotrows.capture.acceleration import accelerate, restore
from hotrows.capture.explain import explain

__all__ = ["accelerate", "explain", "restore"]
