"""What a run begins with: defaults, effects of ids, pretrained tables, wider models."""
