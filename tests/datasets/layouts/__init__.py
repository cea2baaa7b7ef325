"""Raw layouts of public data sets: some lines of each file."""
