"""Studies over many runs: intervals over seeds, cost fronts, comparisons, the search for the cheapest run.

Called by `echo2 sweep`, `pareto`, `compare` and `optimise`. Nothing here simulates by itself: what runs a
configuration is given by the caller.
"""
