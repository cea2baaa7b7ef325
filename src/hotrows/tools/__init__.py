"""What one may run beside a training: advice, searches, reports, trackers."""
