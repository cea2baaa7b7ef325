"""The form of commits: a subject of one thing, and a body that says why."""

from pathlib import Path

MOST_LETTERS = 72  # of a subject: `git log --oneline` shows it whole


def faults(message: str) -> list[str]:
    """What a commit's message lacks."""
    subject, _, body = message.strip().partition("\n")
    missing = []
    if not 8 <= len(subject) <= MOST_LETTERS:
        missing.append(f"a subject of 8 to {MOST_LETTERS} letters, not {len(subject)}")
    if subject.endswith("."):
        missing.append("a subject without a full stop")
    if not body.startswith("\n") or len(body.split()) < 5:
        missing.append("a body, after an empty line, that says why")
    return missing


def main(file: str) -> str | None:
    """For git's hook: what the message in a file lacks; merges pass."""
    lines = [line for line in Path(file).read_text().splitlines() if not line.startswith("#")]
    message = "\n".join(lines)
    missing = [] if message.startswith("Merge ") else faults(message)
    return f"a commit needs {', and '.join(missing)}" if missing else None
