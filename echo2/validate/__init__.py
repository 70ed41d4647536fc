"""How well the simulator foretells a live run: `echo2 validate`, and the table of experiments/fidelity."""
