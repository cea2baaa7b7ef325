"""What a run begins with: defaults, crosses, pretrained tables, wider models."""
