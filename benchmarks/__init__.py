"""One file per question; `results/` holds the answers. How to run them stands in README.md."""
