"""Ranks and their collectives: as processes behind torch.distributed, as threads, and alone."""
