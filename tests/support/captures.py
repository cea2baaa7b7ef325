"""Counts of CUDA graphs that a device captures and launches."""


class Captures:
    """Counts how often each graph of a device is launched."""

    def __init__(self):
        self.launched = []

    def of(self, device):
        """Counts those of a device, or of all devices of a class."""
        capture = device.capture

        def counted(*of_capture):
            number, replay = len(self.launched), capture(*of_capture)
            self.launched.append(0)

            def launch():
                self.launched[number] += 1
                return replay()

            return launch

        device.capture = counted
