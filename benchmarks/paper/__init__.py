"""The figures and tables of the TensorOpt paper, made again: ``make paper``.

setups -> studies -> JSON -> claims, figures. docs/paper.md has the results.
"""
