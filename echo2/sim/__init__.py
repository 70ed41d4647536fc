"""The simulated world: it feeds the scheduler simulated facts and carries out its decisions on traces."""
