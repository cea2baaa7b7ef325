"""What one may run beside a training: advice, searches, reports, trackers."""

from hotrows.runtime.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
