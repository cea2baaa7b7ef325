"""Passes over torch.fx graphs."""
