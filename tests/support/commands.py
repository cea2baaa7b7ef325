"""Options of commands in tests."""

SMALL = ["--option", "hidden=[16]", "--option", "dim=4", "--linear-paths", "plain"]
