"""What a run tells: notes, reports, progress, metrics, pictures, its result."""
