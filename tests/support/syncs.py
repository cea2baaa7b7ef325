"""Syncs of files, which a test needs where power fails; elsewhere disks are slow to do them."""

import os

from tests.support.choice import everything

SYNC = os.fsync


def leave_out():
    """From now on this process syncs nothing, unless all tests run."""
    if not everything():
        from hotrows.engine.storage.disk_io import Disk

        os.fsync = Disk.sync = _checked


def _checked(file):
    os.fstat(file if isinstance(file, int) else file.fileno())  # fails where os.fsync would
