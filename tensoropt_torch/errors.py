"""The error that TensorOpt raises for mistakes of its user."""


class TensorOptError(ValueError):
    """A mistake that the user can correct.

    The message names the thing at fault, what was got, what is allowed and what
    to try. Bugs of TensorOpt itself are never reported by this class.
    """
