"""Raw rows: text, Parquet and frames as one stream of columns."""
