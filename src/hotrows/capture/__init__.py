"""Plain PyTorch models, captured: their lookups packed, without a change to their code."""

from torch._dynamo import list_backends, register_backend

from hotrows.capture.explain import Explanation, explain
from hotrows.capture.function import capture
from hotrows.capture.graph import hotrows
from hotrows.capture.report import Report

__all__ = ["Explanation", "Report", "capture", "explain"]

# Where hotrows is installed, dynamo knows the backend from its entry point.
if "hotrows" not in list_backends(exclude_tags=()):
    register_backend(name="hotrows")(hotrows)
