"""The machine under the engine: native core, devices, streams, transfers, files written atomically."""
