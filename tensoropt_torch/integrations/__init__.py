"""Training loops of others around a parallel module: ``integrations.transformers`` and
``integrations.lightning``. Each imports its library, this package none.
"""
