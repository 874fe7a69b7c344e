"""How a model is widened so that what was tuned on a narrow one holds: parameterizations, their application, checks.

`parameterizations` has SP, NTK, muP and mean-field as data, and the conditions of stability; `scaling` applies one to
any model; `coordinates` measures whether a model keeps what it promises; `bigram` is the model that the theory is of.
"""
