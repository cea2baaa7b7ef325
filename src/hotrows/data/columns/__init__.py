"""Columns: what each kind of column means, a file and a class a kind, from raw cells to a batch."""
