"""How ranks talk: `processes` behind torch.distributed, `threads` within one process."""
