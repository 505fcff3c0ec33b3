"""How close the simulator comes to measured engines: step models are fitted to a part of each measurement and judged on the rest.

The data lie in tests/fidelity/data with their licences, the results in docs/results/fidelity.md.
"""
