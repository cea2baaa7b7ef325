"""Lines of the source by package, the largest first: `python -m tests.lines` prints them."""

from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hotrows"

if __name__ == "__main__":
    lines: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0] if path.parent != SOURCE else "modules at the root"
        lines[package] += path.read_text().count("\n")
    for package, count in lines.most_common():
        print(f"{count:7,} {package}")
    print(f"{lines.total():7,} in all")
