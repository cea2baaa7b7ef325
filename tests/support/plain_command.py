"""`hotrows` without pictures and events of TensorBoard, which take longer than a small run.

For commands that are processes: python -m tests.support.plain_command ARGUMENTS
"""

from hotrows.cli import main
from hotrows.train.telling import metrics_log, pictures


def leave_out_pictures():
    """From now on this process draws nothing and writes no events."""
    pictures.draw_run = pictures.draw_timeline = metrics_log._open_events = lambda *arguments: None


if __name__ == "__main__":
    leave_out_pictures()
    main()
