"""Says when; knows nothing of embeddings."""
