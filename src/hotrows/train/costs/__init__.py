"""Cost models: what a job needs, what a machine gives, and how tables are sharded over ranks."""
