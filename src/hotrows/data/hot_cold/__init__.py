"""FAE data layout: popularity profiles, hot and cold batches, their schedule."""
