"""`headway plan`: which engine settings and which policy keep a target, and what they cost, before they are tried.

measurement.py  bench documents in, what was measured of one engine out
estimate.py     a, e, b, c, h with intervals, and which measurement would narrow them
rig.py          an engine for the simulator, of a measurement or of a profile
options.py      settings and policies to try; what this version refuses or ignores
trial.py        one overlap in virtual time
plan.py         the options' prices, the verdict, headway.plan/1
"""
