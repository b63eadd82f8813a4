"""The paper's own numbers, those that we can quote (docs/paper.md says from where)."""

# Seconds of the search on 48 cores, 16 devices: FT-LDP and FT-Elimination.
SEARCH_SECONDS = {
    "rnn": (0.28, 1.78),
    "wide_resnet": (1292.0, 19666.0),
    "transformer": (201.0, 3030.0),
}

# GB of the parameters; 108 is the RNN's.
PARAMETER_GB = {
    "rnn": 108.0,
    "wide_resnet": 7.3,
    "transformer": 9.7,
    "transformer-s": 4.8,
    "vgg16": 0.52,
}
