"""Runs stages of batches at the right time; knows nothing of embeddings."""
