"""One file per competitor. Each is a process that measures one setting and prints one JSON line."""
