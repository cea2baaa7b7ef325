"""Whether what a user declares fits together."""
