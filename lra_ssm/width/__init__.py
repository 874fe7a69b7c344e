"""Width parameterizations: settings tuned on a narrow model that hold for a wide one.

`parameterizations` has SP, NTK, muP and mean-field as data, and the conditions of stability; `scaling` applies one to
any model; `coordinates` measures whether a model behaves as promised; `bigram` is the model of the theory.
"""
