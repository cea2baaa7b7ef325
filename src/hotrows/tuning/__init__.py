"""Tools that choose settings: coordinate descent over paired benchmarks, cache simulation, scaling."""
